"""What `refdesk doctor` looks at, one module for each subject. A check only reads and mends nothing."""
