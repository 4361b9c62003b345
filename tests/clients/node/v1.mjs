// Version 1 of the official SDK: node v1.mjs ADDRESS
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { visit } from "./visit.mjs";

const client = new Client({ name: "v1", version: "1.0.0" });
const transport = new StreamableHTTPClientTransport(new URL(process.argv[2]));
await client.connect(transport);
await visit(client, transport.protocolVersion);
await transport.terminateSession();
await client.close();
