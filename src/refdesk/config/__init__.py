"""The settings: frozen models, and `load`, which fills them from defaults, a YAML file, the environment and flags.

Everything that is wrong is reported at once as a `ConfigError`. Knows nothing of the parts that the settings are for.
"""

from refdesk.config.environment import ENVIRONMENT, Variable
from refdesk.config.loading import find, load, read_servers_again
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
    LoggingConfig,
    MonitoringConfig,
    OAuthConfig,
    OpenTelemetryConfig,
    ProjectsConfig,
    PrometheusConfig,
    R2RConfig,
    RateLimitConfig,
    ReaderConfig,
    RedisConfig,
    SentryConfig,
    ServerConfig,
)
from refdesk.config.servers import DocsSource, McpServerConfig, ToolRules
from refdesk.config.settings import SETTINGS, Setting, settings_of
from refdesk.config.types import MASK, Url
from refdesk.config.unsupported import require_support, without_effect

__all__ = [
    "ENVIRONMENT",
    "MASK",
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
    "LoggingConfig",
    "McpServerConfig",
    "MonitoringConfig",
    "OAuthConfig",
    "OpenTelemetryConfig",
    "ProjectsConfig",
    "PrometheusConfig",
    "R2RConfig",
    "RateLimitConfig",
    "ReaderConfig",
    "RedisConfig",
    "SentryConfig",
    "ServerConfig",
    "Setting",
    "ToolRules",
    "Url",
    "Variable",
    "find",
    "load",
    "read_servers_again",
    "require_support",
    "settings_of",
    "without_effect",
]
