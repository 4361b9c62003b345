// What every client does once it is connected; prints all it was told as one line of JSON.
export async function visit(client, revision) {
  const { tools } = await client.listTools();
  const found = await client.callTool({
    name: "search_documentation",
    arguments: { query: "How do I start the server?", max_results: 3 },
  });
  const { resources } = await client.listResources();
  const page = await client.readResource({ uri: "techdoc://refdesk/index.md" });
  const server = client.getServerVersion();
  console.log(JSON.stringify({ revision, server, tools, found, resources, page }));
}
