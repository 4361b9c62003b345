"""Settings: frozen models in `models`, and `loading`, which merges defaults, a YAML file, the environment and flags.

All problems are reported together as one `ConfigError`. This package doesn't import the components it configures.
"""

from refdesk.config.loading import load as load
from refdesk.config.models import Config as Config
from refdesk.config.server_model import McpServerConfig as McpServerConfig
