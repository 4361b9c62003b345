"""Settings: frozen models, and `load`, which merges defaults, a YAML file, the environment and flags.

All problems are reported together as one `ConfigError`. This package doesn't import the components it configures.
"""

from refdesk.config.loading import find_config_file, load, load_servers_again
from refdesk.config.models import (
    TOOLSETS,
    AnswersConfig,
    ApiKey,
    AuthConfig,
    CacheConfig,
    CacheTtlConfig,
    CircuitBreakerConfig,
    Config,
    ConvertConfig,
    DownstreamConfig,
    EmbeddingConfig,
    OAuthConfig,
    OpenTelemetryConfig,
    ProjectsConfig,
    R2RConfig,
    RateLimitConfig,
    ReaderConfig,
    RedisConfig,
    SentryConfig,
    ServerConfig,
)
from refdesk.config.rules import require_support
from refdesk.config.server_model import DocsSource, McpServerConfig
from refdesk.config.settings import ENVIRONMENT, SETTINGS, Setting, Variable, list_settings
from refdesk.config.types import Url

__all__ = [
    "ENVIRONMENT",
    "SETTINGS",
    "TOOLSETS",
    "AnswersConfig",
    "ApiKey",
    "AuthConfig",
    "CacheConfig",
    "CacheTtlConfig",
    "CircuitBreakerConfig",
    "Config",
    "ConvertConfig",
    "DocsSource",
    "DownstreamConfig",
    "EmbeddingConfig",
    "McpServerConfig",
    "OAuthConfig",
    "OpenTelemetryConfig",
    "ProjectsConfig",
    "R2RConfig",
    "RateLimitConfig",
    "ReaderConfig",
    "RedisConfig",
    "SentryConfig",
    "ServerConfig",
    "Setting",
    "Url",
    "Variable",
    "find_config_file",
    "list_settings",
    "load",
    "load_servers_again",
    "require_support",
]
