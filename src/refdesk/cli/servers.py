"""`refdesk servers`: the MCP servers behind the desk. A desk that runs on the same data follows within seconds."""

from __future__ import annotations

import json
import os
import re
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from refdesk.cli.parser.arguments import Misuse
from refdesk.cli.running_desk import running_desk
from refdesk.cli.settings import load_settings
from refdesk.cli.terminal import print_table, printable, say
from refdesk.config import Config, McpServerConfig
from refdesk.config.variables import IN_SERVERS, sounds_confidential
from refdesk.downstream.files.servers_file import ServersFile, is_this_desk, last_lines
from refdesk.downstream.files.switching import require_own, switch, switched_on, usable
from refdesk.errors import InvalidArguments, Problem
from refdesk.validation import nearest_name

HEAD = ("NAME", "TRANSPORT", "STATE", "SOURCE", "WHERE")


def servers(arguments: Namespace) -> int:
    """`refdesk servers`."""
    config = load_settings(arguments)
    file = ServersFile(config.servers_path)
    match arguments.action:
        case "add":
            return _add(file, config, arguments)
        case "remove" | "enable" | "disable":
            return _change(file, config, arguments)
        case "import":
            from refdesk.cli.server_import import import_servers

            return import_servers(file, config, arguments)
        case "test":
            from refdesk.cli.server_trial import try_server

            name, server = known_server(file, config, arguments.name)
            if not server.enabled and name not in config.mcpServers:
                server = switched_on(name, file.entries()[name], os.environ)
            return try_server(name, server, config, arguments.json)
        case "logs":
            return _logs(file, config, arguments)
        case "approve":
            from refdesk.cli.server_approval import approve

            return approve(config.data_path / "downstream", arguments)
    return _list(file, config, arguments.json)


def known_server(file: ServersFile, config: Config, name: str) -> tuple[str, McpServerConfig]:
    """A server that is there and can be used; raises InvalidArguments with the nearest one or with what is wrong."""
    if name in config.mcpServers:
        return name, config.mcpServers[name]
    kept = file.read(os.environ)
    if name in kept.servers:
        return name, kept.servers[name]
    if wrong := kept.broken.get(name):
        raise InvalidArguments([Problem("NAME", "; ".join(map(str, wrong)))])
    nearest = nearest_name(name, [*config.mcpServers, *kept.servers])
    hint = f"did you mean {nearest!r}?" if nearest else "`refdesk servers` lists them"
    raise InvalidArguments([Problem("NAME", f"there is no server named {printable(name)[:80]!r}; {hint}")])


# Changing


def _add(file: ServersFile, config: Config, arguments: Namespace) -> int:
    name, entry = arguments.name, _entry(arguments)
    if name in config.mcpServers:
        rule = f"a server of the configuration is named {name!r}; change it there, or choose another name"
        raise InvalidArguments([Problem("NAME", rule)])
    server = usable(name, entry, os.environ)
    if is_this_desk(server, config):
        raise InvalidArguments([Problem("NAME", "this is the desk itself, which cannot be behind itself")])
    file.add({name: entry}, replace=arguments.replace)
    for key in _secrets_written(entry):
        variable = re.sub(r"\W", "_", key).upper()
        say(f"the value of {key} is kept in {file.path}, for your eyes only; '${{{variable}}}' would keep it out")
    _tell({"added": name, **_facts(name, server, "servers.json")}, f"The server {name!r} is added.", arguments.json)
    return 0


def _entry(arguments: Namespace) -> dict[str, Any]:
    """What the options say of a server, as the file has it."""
    if bool(arguments.command) == bool(arguments.url):
        raise Misuse("URL: give either an address, or -- and a command")
    entry: dict[str, Any] = {"url": arguments.url}
    if arguments.command:
        program, *words = arguments.command
        entry = {"command": program, "args": words}
    given = {
        "type": arguments.type,
        "env": _pairs("--env", arguments.env),
        "headers": _pairs("--header", arguments.header),
        "cwd": arguments.cwd and os.path.abspath(os.path.expanduser(arguments.cwd)),
        "docs": _docs(arguments.docs),
        "session": "short" if arguments.short else None,
    }
    return entry | {key: value for key, value in given.items() if value}


def _pairs(option: str, given: Iterable[str]) -> dict[str, str]:
    """`NAME=VALUE`, or `NAME: VALUE` as headers are written; what is wrong is not repeated, as it may be a secret."""
    found = {}
    for number, pair in enumerate(given, 1):
        signs = [pair.find(sign) for sign in "=:" if sign in pair] if option == "--header" else [pair.find("=")]
        end = min(signs, default=-1)
        if end < 1:
            raise Misuse(f"{option}: number {number} is not NAME=VALUE")
        found[pair[:end].strip()] = pair[end + 1 :].strip()
    return found


def _docs(given: str | None) -> dict[str, str] | None:
    if given is None:
        return None
    tool, _, argument = given.partition(":")
    return {"tool": tool, **({"argument": argument} if argument else {})}


def _secrets_written(entry: Mapping[str, Any]) -> list[str]:
    """Names of what is kept in the file as it is, and sounds as if it were better not."""
    pairs = {**entry.get("env", {}), **entry.get("headers", {})}
    return [name for name, value in pairs.items() if sounds_confidential(name) and not IN_SERVERS.search(value)]


def _change(file: ServersFile, config: Config, arguments: Namespace) -> int:
    name, action = arguments.name, arguments.action
    if action == "remove":
        require_own(config, name, file.entries())
        file.remove(name)
    else:
        switch(file, config, os.environ, name, on=action == "enable")
    _tell({f"{action}d": name}, f"The server {printable(name)!r} is {action}d.", arguments.json)
    return 0


# Showing


def _list(file: ServersFile, config: Config, as_json: bool) -> int:
    kept = file.read(os.environ)
    source = config.sources.get("mcpServers", "configuration")
    facts = [_facts(name, server, source) for name, server in config.mcpServers.items()]
    facts += [_facts(name, one, "servers.json") for name, one in kept.servers.items() if name not in config.mcpServers]
    live = _live(config)
    for entry in facts:
        entry["live"] = live.get(entry["name"]) if live is not None else None
    problems = [str(fault) for fault in kept.problems]
    if as_json:
        _print_json({"running": live is not None, "servers": facts, "problems": problems})
        return 1 if problems else 0
    if live is None:
        say(f"no desk runs at {config.own_url}; this is what is configured")
    print_table(HEAD, [_row(entry) for entry in facts])
    for problem in problems:
        say(problem)
    return 1 if problems else 0


def _facts(name: str, server: McpServerConfig, source: str) -> dict[str, Any]:
    return {
        "name": name,
        "transport": server.kind,
        "where": server.where,
        "enabled": server.enabled,
        "session": server.session,
        "source": source,
    }


def _row(entry: Mapping[str, Any]) -> Sequence[str]:
    live = entry["live"]
    state = "enabled" if entry["enabled"] else "disabled"
    if isinstance(live, Mapping) and isinstance(live.get("state"), str):
        message = live.get("message")
        state = f"{live['state']}({message})" if message else live["state"]
    return entry["name"], entry["transport"], state, entry["source"], entry["where"]


def _live(config: Config) -> dict[str, Any] | None:
    """How each server is, by the desk that runs at the configured address; None when none does."""
    desk = running_desk(config.own_url)
    if desk is None or not desk.is_refdesk:
        return None
    downstream = desk.checks.get("downstream")
    found = downstream.get("servers") if isinstance(downstream, dict) else None
    return found if isinstance(found, dict) else {}


def _logs(file: ServersFile, config: Config, arguments: Namespace) -> int:
    name, server = known_server(file, config, arguments.name)
    lines = last_lines(config.data_path / "downstream", name, arguments.lines)
    if arguments.json:
        _print_json({"name": name, "lines": lines})
        return 0
    if not lines and server.kind != "stdio":
        say(f"{name!r} is reached over {server.kind}, so that there is no standard error to keep")
    elif not lines:
        say(f"{name!r} has written nothing yet")
    for line in lines:
        print(printable(line))
    return 0


def _tell(facts: Mapping[str, Any], sentence: str, as_json: bool) -> None:
    if as_json:
        _print_json(facts)
    else:
        print(sentence)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))
