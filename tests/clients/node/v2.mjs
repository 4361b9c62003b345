// Version 2 of the official SDK: node v2.mjs ADDRESS legacy|auto|REVISION
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { visit } from "./visit.mjs";

const [address, wanted] = process.argv.slice(2);
const mode = ["legacy", "auto"].includes(wanted) ? wanted : { pin: wanted };
const client = new Client({ name: "v2", version: "1.0.0" }, { versionNegotiation: { mode } });
const transport = new StreamableHTTPClientTransport(new URL(address));
await client.connect(transport);
await visit(client, client.getNegotiatedProtocolVersion());
await transport.terminateSession();
await client.close();
