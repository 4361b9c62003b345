"""Settings come from five layers, are checked all at once, and never show a secret."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from refdesk.config.dotenv import DotEnv, read_dotenv
from refdesk.config.environment import ENVIRONMENT
from refdesk.config.loading import find_config_file, load
from refdesk.config.models import ApiKey, Config, ServerConfig
from refdesk.config.setting_keys import SETTINGS, describe_settings
from refdesk.config.types import Url
from refdesk.errors import ConfigError

SECRET = "hunter2hunter2"
FREE_FORM = {
    "server": {"port": 0},
    "r2r": {"api_url": f"http://u:{SECRET}@r2r:7272", "email": "a@example.com", "password": SECRET, "api_key": SECRET},
    "cache.redis.url": f"redis://:{SECRET}@localhost:6379/1?password={SECRET}",
    "monitoring.sentry.dsn": SECRET,
    "auth.keys": [{"key": SECRET}, {"key_sha256": hashlib.sha256(b"other").hexdigest()}],
}

UNKNOWN_AT_THE_TOP = (
    "unknown key; expected one of answers, auth, cache, circuit_breaker, console, convert, data_dir, downstream, "
    "embedding, logging, mcpServers, monitoring, "
    "project, projects, r2r, rate_limits, reader, server, toolsets"
)


def write_config(folder: Path, text: str) -> Path:
    path = folder / "refdesk.yaml"
    path.write_text(text, "utf-8")
    return path


def problems(path: Path | None = None, environ: dict[str, str] | None = None, **overrides: Any) -> list[str]:
    flags = {key.replace("__", "."): value for key, value in overrides.items()}
    with pytest.raises(ConfigError) as caught:
        load(path, environ or {}, flags)
    return list(caught.value.problems)


# Layers


def test_nothing_at_all_gives_the_defaults() -> None:
    config = load(None, {})
    assert (config.server.host, config.server.port, config.toolsets) == (
        "127.0.0.1",
        8001,
        ("docs", "r2r", "reader", "convert", "downstream"),
    )
    assert set(config.sources.values()) == {"default"}
    assert config.data_path.name == "refdesk"


def test_each_layer_wins_over_the_one_below(tmp_path: Path) -> None:
    path = write_config(tmp_path, "server: {port: 1}")
    environ: dict[str, str] = {}
    assert load(path, environ).server.port == 1
    environ["MCP_PROXY_PORT"] = "2"
    assert load(path, environ).server.port == 2
    environ["MCP_SERVER_PORT"] = "3"
    assert load(path, environ).server.port == 3
    environ["refdesk__Server__PORT"] = "4"
    assert load(path, environ).server.port == 4
    assert load(path, environ, {"server.port": 5}).server.port == 5


def test_the_source_of_each_value_is_kept(tmp_path: Path) -> None:
    path = write_config(tmp_path, "server: {workers: 2}")
    environ = {"MCP_SERVER_PORT": "9", "REFDESK__PROJECT": "atlas"}
    sources = load(path, environ, {"data_dir": "/data"}).sources
    assert sources["server.workers"] == "refdesk.yaml"
    assert sources["server.port"] == "environment MCP_SERVER_PORT"
    assert sources["project"] == "environment REFDESK__PROJECT"
    assert sources["data_dir"] == "command line"
    assert sources["server.host"] == "default"
    assert sources.keys() == SETTINGS.keys()


def test_empty_variables_and_absent_flags_count_as_unset(tmp_path: Path) -> None:
    path = write_config(tmp_path, "server:\nlogging:\n  level:\n")
    environ = {"MCP_SERVER_PORT": "", "REFDESK__SERVER__HOST": " "}
    assert load(path, environ, {"server.workers": None}).model_dump() == load(None, {}).model_dump()


def test_variables_of_other_programs_are_left_alone() -> None:
    environ = {
        "MCP_TIMEOUT": "1", "R2R_POSTGRES_HOST": "db", "REFDESKTOP": "1", "HOME": "/root",
        "REFDESK_SERVICE_HOST": "10.0.0.1", "REFDESK_PORT": "tcp://10.0.0.1:8001",
        "R2R_PORT_7272_TCP_ADDR": "10.0.0.2", "MCP_SOMETHING": "",
    }  # fmt: skip
    assert load(None, environ) == load(None, {})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("MCP_SERVR_PORT", "did you mean MCP_SERVER_PORT?"),
        ("MCP_PROXY_MAX_PAGES", "did you mean MCP_PROXY_MAX_PAGES_PER_CALL?"),
        ("R2R_SERVICE_PASWORD", "did you mean R2R_SERVICE_PASSWORD?"),
        ("REFDESK_SERVER_WORKERS", "did you mean REFDESK__SERVER__WORKERS?"),
        ("MCP_SOMETHING", "refdesk.yaml and the manual list the settings"),
    ],
)
def test_an_unknown_variable_is_warned_of_with_the_nearest_one(name: str, hint: str) -> None:
    assert load(None, {name: SECRET}).warnings == (f"environment {name}: is not a variable of Refdesk; {hint}",)


def test_a_variable_that_the_file_refers_to_is_known(tmp_path: Path) -> None:
    path = write_config(tmp_path, 'project: "${MCP_SOMETHING}"')
    assert load(path, {"MCP_SOMETHING": "atlas"}).warnings == ()


def test_the_url_of_redis_alone_selects_it() -> None:
    config = load(None, {"REDIS_URL": "redis://cache:6379"})
    assert (config.cache.type, config.sources["cache.type"]) == ("redis", "environment REDIS_URL")
    assert load(None, {"REDIS_URL": "redis://cache:6379", "REFDESK__CACHE__TYPE": "memory"}).cache.type == "memory"
    dotenv = DotEnv({"REDIS_URL": "redis://cache:6379"})
    assert load(None, dotenv.variables, dotenv=dotenv).cache.type == "memory"


def test_a_mock_mode_is_refused() -> None:
    (problem,) = problems(environ={"MCP_PROXY_MOCK_MODE": "True"})
    assert problem.startswith("environment MCP_PROXY_MOCK_MODE: Refdesk has no mock mode; unset it")
    assert load(None, {"MCP_PROXY_MOCK_MODE": "false"}) == load(None, {})


def test_a_dotenv_file_has_names_and_values(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    lines = [
        "# comment", "", "A=plain # comment", "B = spaced ", "export C='single # quoted'",
        r'D="double\n\"quoted\"" # end',
        "E=", "F=a#b", "G==", "1=x", "no assignment", "H='open",
    ]  # fmt: skip
    file.write_text("\ufeff" + "\r\n".join(lines))
    found = read_dotenv(file)
    assert found.variables == {
        "A": "plain", "B": "spaced", "C": "single # quoted", "D": 'double\n"quoted"', "E": "", "F": "a#b", "G": "=",
    }  # fmt: skip
    assert [str(fault) for fault in found.faults] == [
        f".env: line {number}: is ignored; write NAME=value" for number in (10, 11, 12)
    ]
    assert read_dotenv(tmp_path / "none") == DotEnv()
    file.write_bytes(b"A=\xff")
    assert [str(fault) for fault in read_dotenv(file).faults] == [".env: is ignored, as it is not UTF-8 text"]


def test_a_setting_from_a_dotenv_file_names_it() -> None:
    dotenv = DotEnv({"MCP_SERVER_PORT": "99999", "MCP_SERVR_HOST": "x"})
    environ = {**dotenv.variables, "MCP_PROXY_LOG_LEVEL": "debug"}
    with pytest.raises(ConfigError) as caught:
        load(None, environ, dotenv=dotenv)
    assert caught.value.problems == (".env MCP_SERVER_PORT: server.port: 99999 is greater than 65535",)
    config = load(None, environ | {"MCP_SERVER_PORT": "9"}, dotenv=DotEnv({"MCP_SERVR_HOST": "x"}))
    assert config.sources["logging.level"] == "environment MCP_PROXY_LOG_LEVEL"
    (warning,) = config.warnings
    assert warning.startswith(".env MCP_SERVR_HOST: is not a variable of Refdesk")


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "{}"])
def test_an_empty_file_is_fine(tmp_path: Path, text: str) -> None:
    assert load(write_config(tmp_path, text), {}).model_dump() == load(None, {}).model_dump()


def test_the_file_is_found_by_its_variable_and_then_in_the_folder(tmp_path: Path) -> None:
    assert find_config_file(tmp_path, {}) is None
    path = write_config(tmp_path, "")
    assert find_config_file(tmp_path, {"REFDESK_CONFIG": ""}) == path
    assert find_config_file(tmp_path, {"REFDESK_CONFIG": "other.yaml"}) == tmp_path / "other.yaml"
    assert find_config_file(tmp_path, {"REFDESK_CONFIG": "/etc/refdesk.yaml"}) == Path("/etc/refdesk.yaml")


# Values


@pytest.mark.parametrize("text", ["true", "1", "YES", "On"])
def test_a_switch_is_turned_on_by_any_of_its_words(text: str) -> None:
    assert load(None, {"MCP_AUTH_REQUIRED": text, "MCP_API_KEY": SECRET}).auth.required


@pytest.mark.parametrize("text", ["false", "0", "No", "off"])
def test_a_switch_is_turned_off_by_any_of_its_words(text: str) -> None:
    assert not load(None, {"MCP_AUTH_REQUIRED": text}).auth.required


def test_lists_may_be_texts_with_commas() -> None:
    config = load(
        None,
        {"MCP_ALLOWED_ORIGINS": "https://A.example.com/, http://localhost:3000,", "REFDESK__TOOLSETS": "docs,Reader"},
    )
    assert config.server.allowed_origins == ("https://a.example.com", "http://localhost:3000")
    assert config.toolsets == ("docs", "reader")


def test_lists_may_be_json() -> None:
    config = load(None, {"MCP_PROXY_BLOCKLIST_KEYWORDS": '["project x", "a,b"]', "REFDESK__TOOLSETS": '["docs"]'})
    assert config.reader.blocklist_keywords == ("project x", "a,b")
    assert config.toolsets == ("docs",)


@pytest.mark.parametrize("text", ['["a"', '{"a": 1}', "[1]", '"a", "b"', '"a"', "[a, b]"])
def test_a_list_that_is_neither_json_nor_separated_by_commas_is_refused(text: str) -> None:
    (problem,) = problems(environ={"MCP_PROXY_BLOCKLIST_KEYWORDS": text})
    assert problem.startswith("environment MCP_PROXY_BLOCKLIST_KEYWORDS: reader.blocklist_keywords: ")
    assert 'is not a JSON list of texts, such as ["one", "two"]; or separate them with commas' in problem


def test_one_variable_holds_many_keys() -> None:
    keys = load(None, {"MCP_API_KEY": " first-key , ,second-key,"}).auth.keys
    assert [(key.user, key.tenant) for key in keys] == [("api-key", "default")] * 2
    assert [key.digest for key in keys] == [hashlib.sha256(key).hexdigest() for key in (b"first-key", b"second-key")]


def test_a_key_may_be_given_as_its_hash(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"first-key").hexdigest()
    path = write_config(
        tmp_path, f"auth: {{keys: [{{key_sha256: {digest.upper()}, user: ann, tenant: acme, roles: [admin]}}]}}"
    )
    (key,) = load(path, {}).auth.keys
    assert (key.digest, key.user, key.tenant, key.roles) == (digest, "ann", "acme", ("admin",))


def test_the_nested_form_of_a_service_account_is_the_same_setting(tmp_path: Path) -> None:
    path = write_config(tmp_path, f"r2r: {{service_account: {{email: a@example.com, password: {SECRET}}}}}")
    config = load(path, {})
    assert config.r2r.email == "a@example.com"
    assert config.r2r.password is not None
    assert config.r2r.password.get_secret_value() == SECRET
    assert config.sources["r2r.email"] == "refdesk.yaml"


def test_both_forms_of_a_service_account_at_once_are_one_too_many(tmp_path: Path) -> None:
    path = write_config(tmp_path, "r2r: {service_account: {email: a, password: b}, email: c}")
    assert problems(path) == ["refdesk.yaml: r2r.email: set twice under different names; keep one"]


@pytest.mark.parametrize(
    ("environ", "radius"),
    [
        ({"MCP_PROXY_MAX_CHUNK_WINDOW": "1"}, 0),
        ({"MCP_PROXY_MAX_CHUNK_WINDOW": "6"}, 2),
        ({"MCP_PROXY_MAX_CHUNK_WINDOW": "7", "RAG_WINDOW_RADIUS": "8"}, 8),
        ({"MCP_PROXY_MAX_CHUNK_WINDOW": "x", "RAG_WINDOW_RADIUS": "8", "MCP_PROXY_MAX_WINDOW_RADIUS": "9"}, 9),
    ],
)
def test_the_newest_name_of_the_window_radius_wins(environ: dict[str, str], radius: int) -> None:
    assert load(None, environ).reader.max_window_radius == radius


def test_a_window_of_no_chunks_is_refused() -> None:
    assert problems(environ={"MCP_PROXY_MAX_CHUNK_WINDOW": "0"}) == [
        "environment MCP_PROXY_MAX_CHUNK_WINDOW: reader.max_window_radius: 0 is not a whole number of chunks, 1 or more"
    ]


def test_the_tool_cache_variable_is_in_milliseconds() -> None:
    assert load(None, {"MCP_TOOL_CACHE_TTL": "1500"}).downstream.tool_cache_ttl_seconds == 1.5
    assert problems(environ={"MCP_TOOL_CACHE_TTL": "5m"}) == [
        "environment MCP_TOOL_CACHE_TTL: downstream.tool_cache_ttl_seconds: 5m is not a whole number of milliseconds"
    ]


def test_a_date_in_the_file_is_text(tmp_path: Path) -> None:
    path = write_config(tmp_path, "downstream: {protocol_version: 2025-06-18}")
    assert load(path, {}).downstream.protocol_version == "2025-06-18"


def test_a_home_folder_is_filled_in() -> None:
    assert load(None, {"REFDESK_DATA": "~/refdesk"}).data_path == Path.home() / "refdesk"


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("[::1]", True),
        ("LocalHost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.2", False),
        ("localhost.example.com", False),
        ("127.0.0.1.example.com", False),
    ],
)
def test_loopback_is_this_machine_only(host: str, is_loopback: bool) -> None:
    assert ServerConfig(host=host).is_loopback is is_loopback


# Variables in the file


def test_variables_in_the_file_are_filled_in(tmp_path: Path) -> None:
    path = write_config(tmp_path, 'server: {port: "${PORT}"}\nproject: "a-${NAME:-b}-${OTHER:-}-$${PORT}"')
    config = load(path, {"PORT": "9000"})
    assert config.server.port == 9000
    assert config.project == "a-b--${PORT}"


def test_variables_are_filled_in_inside_lists(tmp_path: Path) -> None:
    path = write_config(tmp_path, 'auth: {keys: [{key: "${KEY}"}]}')
    assert load(path, {"KEY": SECRET}).auth.keys[0].digest == hashlib.sha256(SECRET.encode()).hexdigest()


def test_an_optional_secret_may_be_left_out_by_an_empty_default(tmp_path: Path) -> None:
    path = write_config(tmp_path, 'monitoring: {sentry: {dsn: "${SENTRY_DSN:-}"}}')
    assert load(path, {}).monitoring.sentry.dsn is None


def test_a_missing_variable_is_named_with_file_and_key(tmp_path: Path) -> None:
    (problem,) = problems(write_config(tmp_path, 'project: "${NOPE}"'))
    assert problem.startswith("refdesk.yaml: project: environment variable NOPE is not set")


def test_a_section_that_is_off_may_name_a_missing_variable(tmp_path: Path) -> None:
    text = 'monitoring: {sentry: {enabled: %s, dsn: "${SENTRY_DSN}"}}'
    assert load(write_config(tmp_path, text % "false"), {}).monitoring.sentry.dsn is None
    (problem,) = problems(write_config(tmp_path, text % "true"))
    assert "environment variable SENTRY_DSN is not set" in problem
    (problem,) = problems(write_config(tmp_path, text % "false"), monitoring__sentry__enabled=True)
    assert "Sentry needs a DSN" in problem


@pytest.mark.parametrize("text", ["${}", "${A B}", "${1A}", "${A-b}", "${A:?b}"])
def test_a_variable_that_has_no_name_is_refused(tmp_path: Path, text: str) -> None:
    (problem,) = problems(write_config(tmp_path, f"project: '{text}'"), {"A": "x"})
    assert "must contain the name of an environment variable" in problem


# Problems


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    path = write_config(
        tmp_path, "server: {prot: 1, workers: 0, host: 0.0.0.0}\ncach: {type: redis}\nlogging: {level: loud}"
    )
    environ = {"MCP_SERVER_PORT": "99999", "REFDESK__READER__MAX_TEXT": "3"}
    assert problems(path, environ, cache__type="disk") == [
        "refdesk.yaml: server.prot: unknown key; did you mean server.port?",
        "refdesk.yaml: cach: unknown key; did you mean cache?",
        "environment REFDESK__READER__MAX_TEXT: reader.max_text: unknown key; did you mean reader.max_text_bytes?",
        "environment MCP_SERVER_PORT: server.port: 99999 is greater than 65535",
        "refdesk.yaml: server.workers: 0 is less than 1",
        "command line: cache.type: disk is not one of memory, redis",
        "refdesk.yaml: logging.level: loud is not one of debug, info, warning, error",
        "refdesk.yaml: server.host: 0.0.0.0 is reachable from other machines, but authentication is off; "
        "set MCP_AUTH_REQUIRED=true and MCP_API_KEY, or start with --allow-anonymous",
    ]


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("server.port", "abc", "server.port: abc is not a whole number"),
        ("server.port", True, "server.port: true is not a number"),
        ("server.port", 1.5, "server.port: 1.5 is not a whole number"),
        ("server.port", [1], "server.port: a list is not a whole number"),
        pytest.param("server.port", 10**5000, "server.port: a number is greater than 65535", id="huge"),
        ("server.host", "http://x", "server.host: http://x is not a host name or address"),
        ("server.host", "", "server.host: '' is not a host name or address"),
        ("server.host", 8, "server.host: 8 is not text; put it in quotes"),
        ("server.stateless", "maybe", "server.stateless: maybe is not true or false"),
        ("server.idle_timeout_seconds", 0, "server.idle_timeout_seconds: 0 is not greater than 0"),
        ("server.idle_timeout_seconds", float("nan"), "server.idle_timeout_seconds: nan is not a finite number"),
        ("server.allowed_hosts", 3, "server.allowed_hosts: 3 is not a list"),
        (
            "server.allowed_origins",
            "https://a.example.com/b",
            "server.allowed_origins[0]: https://a.example.com/b is not an origin such as https://app.example.com, "
            "without a path",
        ),
        ("server", 5, "server: expected a section, not a number"),
        ("server.prot", 5, "server.prot: unknown key; did you mean server.port?"),
        ("server.prot", None, "server.prot: unknown key; did you mean server.port?"),
        ("port", 5, "port: unknown key; did you mean server.port?"),
        ("sever.port", 5, "sever.port: unknown key; did you mean server.port?"),
        ("cache.ttl.serach", 5, "cache.ttl.serach: unknown key; did you mean cache.ttl.search?"),
        ("cache.ttl.zzz", 5, "cache.ttl.zzz: unknown key; expected one of list, rag, search"),
        ("zzz", {}, f"zzz: {UNKNOWN_AT_THE_TOP}"),
        ("sources", {}, "sources: unknown key; did you mean embedding.source?"),
        ("monitoring.prometheus.port", 0, "monitoring.prometheus.port: 0 is less than 1"),
        ("monitoring.prometheus.port", 8001, "monitoring.prometheus.port: 8001 is also server.port; choose another"),
        ("data_dir", 7, "data_dir: 7 is not a path"),
        ("data_dir", "a\0b", "data_dir: 'a\\x00b' is not a path"),
        ("data_dir", "~no-such-user/a", "data_dir: ~no-such-user/a is not a path whose home folder is known"),
        ("r2r.api_url", "ftp://x", "r2r.api_url: ftp://x is not a URL such as http://localhost:7272"),
        ("r2r.api_url", "http://[x", "r2r.api_url: 'http://[x' is not a URL such as http://localhost:7272"),
        ("cache.redis.url", "localhost", "cache.redis.url: localhost is not a URL such as redis://localhost:6379"),
        (
            "toolsets",
            ["docs", "redaer"],
            "toolsets[1]: redaer is not one of docs, r2r, reader, convert, downstream; did you mean reader?",
        ),
        ("auth.keys", [{"key": ""}], "auth.keys[0].key: ******** is not a key of at least one character"),
        ("auth.keys", [{"kye": "x"}], "auth.keys[0].kye: unknown key; did you mean key?"),
        ("auth.keys", [{"key": "x", "user": ""}], "auth.keys[0].user: expected at least one character"),
        (
            "auth.keys",
            [{1: "x"}],
            f"auth.keys[0][1]: unknown key; expected one of {', '.join(ApiKey.model_fields)}",
        ),
        ("auth.keys", [{}], "auth.keys[0]: ******** is not an entry with exactly one of key and key_sha256"),
        ("auth.keys", [{"key_sha256": "abc"}], "auth.keys[0].key_sha256: ******** is not 64 hexadecimal digits"),
        ("auth.keys", ["x"], "auth.keys[0]: ******** is not a mapping"),
    ],
)
def test_a_problem_says_where_what_and_what_was_expected(key: str, value: Any, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, {}, {key: value})
    assert caught.value.problems == (f"command line: {problem}",)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("server: [\nport: 1", "line 2, column 8: not valid YAML: expected ',' or ']', but got '<stream end>'"),
        ("a: b: c", "line 1, column 5: not valid YAML: mapping values are not allowed here"),
        ("a: 1\n---\nb: 1", "line 2, column 1: not valid YAML: but found another document"),
        ("server: {port: !!int ''}", "line 1, column 16: not valid YAML: not a valid int"),
        ("server: {port: !!bool x}", "line 1, column 16: not valid YAML: not a valid bool"),
        (
            "project: !other x",
            "line 1, column 10: not valid YAML: could not determine a constructor for the tag (hidden)",
        ),
        ("? [a]\n: b", "line 1, column 3: not valid YAML: found unhashable key"),
        ("a: \x07", "character 4: character not allowed in YAML"),
        ("- server", "expected sections at the top level, not a list"),
        ("server", "expected sections at the top level, not text"),
        ("[" * 3000, "nested too deeply"),
        ("server:\n  port: 1\n  port: 2", "server.port: duplicate key, on lines 2 and 3"),
        ("auth: {keys: [{key: a, key: b}]}", "auth.keys[0].key: duplicate key, on lines 1 and 1"),
        ("1: 2", f"1: {UNKNOWN_AT_THE_TOP}"),
        ('project: "\\ud800"', "project: not UTF-8 text"),
    ],
)
def test_a_file_that_cannot_be_taken_says_where(tmp_path: Path, text: str, problem: str) -> None:
    assert problems(write_config(tmp_path, text)) == [f"refdesk.yaml: {problem}"]


def test_a_file_that_refers_to_itself_is_refused(tmp_path: Path) -> None:
    assert problems(write_config(tmp_path, "server: &a {port: *a}")) == [
        "refdesk.yaml: server.port: a mapping is not a whole number"
    ]


def test_a_file_that_is_not_there_or_is_not_text_says_so(tmp_path: Path) -> None:
    missing = tmp_path / "missing.yaml"
    assert problems(missing) == [f"{missing}: no such file"]
    assert problems(tmp_path) == [f"{tmp_path}: cannot be read: Is a directory"]
    missing.write_bytes(b"\xff\xfe\xff")
    assert problems(missing) == [f"{missing}: not UTF-8 text"]


# Rules between settings


def test_an_open_address_needs_authentication_or_an_explicit_word() -> None:
    assert load(None, {"MCP_SERVER_HOST": "0.0.0.0"}, {"server.allow_anonymous": True})
    assert load(None, {"MCP_SERVER_HOST": "0.0.0.0", "MCP_AUTH_REQUIRED": "1", "MCP_API_KEY": SECRET * 2})
    (problem,) = problems(environ={"MCP_SERVER_HOST": "0.0.0.0"})
    assert problem.startswith("environment MCP_SERVER_HOST: server.host: 0.0.0.0 is reachable from other machines")


def test_a_rule_is_silent_while_what_it_reads_is_itself_wrong() -> None:
    assert problems(environ={"MCP_SERVER_HOST": "0.0.0.0", "MCP_AUTH_REQUIRED": "maybe"}) == [
        "environment MCP_AUTH_REQUIRED: auth.required: maybe is not true or false"
    ]


def test_required_authentication_needs_a_key() -> None:
    (problem,) = problems(environ={"MCP_AUTH_REQUIRED": "true", "MCP_API_KEY": " , "})
    assert problem.startswith("environment MCP_AUTH_REQUIRED: auth.required: no key is configured")


def test_the_same_key_twice_is_refused_even_when_one_is_a_hash() -> None:
    keys = [{"key": SECRET}, {"key_sha256": hashlib.sha256(SECRET.encode()).hexdigest()}]
    assert problems(auth__keys=keys) == ["command line: auth.keys: duplicate key: numbers 1 and 2 are the same"]


def test_a_short_key_is_refused_where_other_machines_can_try_it() -> None:
    environ = {"MCP_API_KEY": "short", "MCP_AUTH_REQUIRED": "true"}
    assert load(None, environ)
    (problem,) = problems(environ=environ | {"MCP_SERVER_HOST": "::"})
    assert problem.startswith("environment MCP_API_KEY: auth.keys: key number 1 is shorter than 16 characters")


def test_a_largest_body_above_all_bodies_together_is_refused() -> None:
    (problem,) = problems(server__max_body_bytes=2048, server__max_inflight_body_bytes=1024)
    assert problem == "command line: server.max_body_bytes: 2048 exceeds server.max_inflight_body_bytes, 1024"


def test_half_a_service_account_is_refused() -> None:
    (problem,) = problems(environ={"R2R_SERVICE_EMAIL": "a@example.com"})
    assert problem.endswith("set both r2r.email and r2r.password, or neither")


@pytest.mark.parametrize(("source", "missing"), [("onnx", "model_path"), ("endpoint", "api_url")])
def test_an_embedding_model_that_cannot_be_found_is_refused(source: str, missing: str) -> None:
    (problem,) = problems(embedding__source=source)
    assert f"set embedding.{missing}" in problem


def test_sentry_without_an_address_is_refused() -> None:
    (problem,) = problems(monitoring__sentry__enabled=True)
    assert "set SENTRY_DSN" in problem


# Secrets


def test_secrets_are_kept_and_never_shown() -> None:
    config = load(None, {}, FREE_FORM)
    assert config.cache.redis.url.get_secret_value().startswith(f"redis://:{SECRET}@")
    for text in (repr(config), str(config), repr(config.auth.keys[0]), str(config.r2r), f"{config.cache.redis.url}"):
        assert SECRET not in text
    rows = {key: value for key, value, _ in describe_settings(config)}
    assert SECRET not in str(rows)
    assert rows["r2r.password"] == "********"
    assert rows["r2r.api_url"] == "http://u:********@r2r:7272"
    assert rows["cache.redis.url"] == "redis://:********@localhost:6379/1?********"
    assert rows.keys() == SETTINGS.keys()


@pytest.mark.parametrize("variable", [variable.name for variable in ENVIRONMENT if SETTINGS[variable.key].is_secret])
def test_a_wrong_secret_in_the_environment_is_not_repeated(variable: str) -> None:
    environ = {variable: f"{SECRET}\ud800", "MCP_SERVER_PORT": "x"}
    assert SECRET not in "\n".join(problems(environ=environ))


@pytest.mark.parametrize(
    "text",
    [
        f"r2r: {SECRET}",
        f"r2r: {{password: *{SECRET}}}",
        f"r2r: {{password: !{SECRET} x}}",
        f"r2r: {{password: [{SECRET}]}}",
        f"r2r: {{api_url: 'u:{SECRET}@r2r'}}",
        f"r2r: {{api_url: 'http://u:{SECRET}/?#@r2r@x:y'}}",
        f"cache: {{redis: {{url: 'redis:/x?password={SECRET}'}}}}",
        f"auth: {{keys: {{{SECRET}: 1}}}}",
        f"auth: {{keys: [{{key: [{SECRET}]}}]}}",
        f"auth: {{keys: [{SECRET}]}}",
        f"auth: {{keys: [{{key: {SECRET}, user: 5}}, {{key_sha256: {SECRET}}}]}}",
        f"monitoring: {{sentry: {{dsn: {{a: {SECRET}}}}}}}",
    ],
)
def test_a_wrong_secret_in_the_file_is_not_repeated(tmp_path: Path, text: str) -> None:
    assert SECRET not in "\n".join(problems(write_config(tmp_path, text)))


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://host/path", "http://host/path"),
        ("http://token@host", "http://********@host"),
        ("http://u:p@ss@host:1/x#y", "http://u:********@host:1/x?********"),
        ("http://h/p?password=a@b", "http://********@b"),
    ],
)
def test_a_url_shows_itself_without_its_credentials(url: str, text: str) -> None:
    assert str(Url(url)) == text
    assert repr(Url(url)) == f"Url({text!r})"


def test_a_model_that_is_made_by_hand_does_not_repeat_a_secret_either() -> None:
    with pytest.raises(ValidationError) as caught:
        ApiKey.model_validate({"key": SECRET, "key_sha256": SECRET})
    assert SECRET not in str(caught.value)


def test_a_configuration_is_frozen_and_can_be_sent_to_a_worker() -> None:
    config = load(None, {}, FREE_FORM)
    with pytest.raises(ValidationError):
        config.server.port = 1  # type: ignore[misc]  # that it cannot be assigned is what is tested
    assert pickle.loads(pickle.dumps(config)) == config


# Garbage

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary() | st.dates()
garbage = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.integers(), inner, max_size=4),
    max_leaves=8,
)
keys = st.sampled_from([*SETTINGS, "", "server", "auth", "cache.ttl", "r2r.service_account"]) | st.text()
names = st.sampled_from([*(variable.name for variable in ENVIRONMENT), "REFDESK__"]) | st.builds(
    lambda key: f"REFDESK__{key.replace('.', '__')}", keys
)


def outcome(path: Path | None, environ: dict[str, str], overrides: dict[str, Any]) -> Config | ConfigError:
    try:
        return load(path, environ, overrides)
    except ConfigError as error:
        return error


def assert_plain(outcome: Config | ConfigError) -> None:
    """A configuration that can be shown, or problems that are one line each in our own words."""
    if isinstance(outcome, Config):
        assert all(value.isprintable() for _, value, _ in describe_settings(outcome))
        return
    assert outcome.problems
    for problem in outcome.problems:
        assert problem.isprintable()
        assert "pydantic" not in problem
        assert "Input should" not in problem
        assert not problem.endswith("accepted")


@given(st.dictionaries(keys, garbage, max_size=6))
@example({"auth.keys": [{"key": {"a": 1}, "roles": 5}]})
@example({"server": {None: 1, 2**9000: 3}})
def test_any_flags_give_a_configuration_or_plain_problems(overrides: dict[str, Any]) -> None:
    assert_plain(outcome(None, {}, overrides))


@given(st.dictionaries(names, st.text(st.characters()), max_size=6))
def test_any_environment_gives_a_configuration_or_plain_problems(environ: dict[str, str]) -> None:
    assert_plain(outcome(None, environ, {}))


words = st.sampled_from(
    [
        "server",
        "port",
        "auth",
        "keys",
        ": ",
        "\n",
        "  ",
        "- ",
        "[",
        "]",
        "{",
        "}",
        "&a ",
        "*a",
        "!!int ",
        "<<",
        "? ",
        "'",
        "|",
        "${",
        "A}",
        "0x1f",
        "~",
        "---",
        "2025-01-01",
        "%",
        "\t",
    ]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(words | st.text(max_size=3), max_size=20).map("".join))
def test_any_file_gives_a_configuration_or_plain_problems(tmp_path: Path, text: str) -> None:
    path = tmp_path / "refdesk.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    assert_plain(outcome(path, {"A": "x"}, {}))
