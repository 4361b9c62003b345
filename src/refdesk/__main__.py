"""`python -m refdesk`."""

import sys

from refdesk.cli import main

sys.exit(main())
