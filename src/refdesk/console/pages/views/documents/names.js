// @ts-check
/**
 * Dropped or chosen files with their document names.
 *
 * A document is identified by its name in its collection, and upload names have no folders. A file's relative path is
 * therefore joined into its name, so that files of the same name don't clash and uploading a folder again updates its
 * documents.
 */

/** @typedef {{file: File, name: string}} NamedFile */
/** @typedef {{found: NamedFile[], hidden: number}} FileSelection files, and the number of hidden files left out */

/** Names of folders and files to skip. */
const HIDDEN_NAMES = /^(\..*|node_modules|__pycache__)$/;

/** @param {FileList | File[]} files from a file or folder input @returns {FileSelection} */
export function readChosenFiles(files) {
  return nameFiles([...files].map((file) => [file.webkitRelativePath || file.name, file]));
}

/** @param {DataTransfer} transfer of a drop, may include folders @returns {Promise<FileSelection>} */
export async function readDroppedFiles(transfer) {
  // Read synchronously: the browser clears the items after the first await.
  const items = [...transfer.items].filter((item) => item.kind === "file");
  const roots = items.map((item) => item.webkitGetAsEntry?.() ?? item.getAsFile());
  /** @type {[string, File][]} */
  const found = [];
  for (const root of roots) if (root) await collectFiles(root, found);
  return nameFiles(found);
}

/** @param {[string, File][]} files with their paths @returns {FileSelection} */
function nameFiles(files) {
  const visible = files.filter(([path]) => !path.split("/").some((part) => HIDDEN_NAMES.test(part)));
  const found = visible.map(([path, file]) => ({file, name: toDocumentName(path)}));
  return {found, hidden: files.length - visible.length};
}

/** @param {string} path relative path; the outermost folder is not part of the name */
export function toDocumentName(path) {
  const parts = path.split("/").filter(Boolean);
  return (parts.length > 1 ? parts.slice(1) : parts).join("-");
}

/** @param {FileSystemEntry | File} entry @param {[string, File][]} found */
async function collectFiles(entry, found) {
  if (entry instanceof File) found.push([entry.name, entry]);
  else if (entry.isFile)
    found.push([entry.fullPath.slice(1), await getFile(/** @type {FileSystemFileEntry} */ (entry))]);
  else if (!HIDDEN_NAMES.test(entry.name)) {
    const entries = await listEntries(/** @type {FileSystemDirectoryEntry} */ (entry));
    for (const inner of entries) await collectFiles(inner, found);
  }
}

/** @param {FileSystemFileEntry} entry @returns {Promise<File>} */
function getFile(entry) {
  return new Promise((resolve, reject) => entry.file(resolve, reject));
}

/** @param {FileSystemDirectoryEntry} folder @returns {Promise<FileSystemEntry[]>} */
async function listEntries(folder) {
  const reader = folder.createReader();
  const all = [];
  for (;;) {
    // readEntries returns batches; an empty one is the last.
    const part = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (part.length === 0) return all;
    all.push(...part);
  }
}

/** @param {string} name @returns {string} the name with a number before its suffix, incremented */
export function incrementName(name) {
  const dot = name.lastIndexOf(".");
  const [stem, suffix] = dot > 0 ? [name.slice(0, dot), name.slice(dot)] : [name, ""];
  const match = /^(.*)-(\d{1,3})$/.exec(stem);
  return match ? `${match[1]}-${Number(match[2]) + 1}${suffix}` : `${stem}-2${suffix}`;
}
