// @ts-check
/**
 * What is dropped or chosen, as files with the names that they get on the desk.
 *
 * A document is known by its name within its collection, and an upload has a name without folders: a file out of a
 * folder carries the folders in its name, so that two of the same name do not take each other's place, and the same
 * folder sent again later finds its own documents.
 */

/** @typedef {{file: File, name: string}} Named */
/** @typedef {{found: Named[], hidden: number}} Chosen what was found, and how many hidden files were left out */

/** Folders and files that nobody means when they drop a project. */
const HIDDEN = /^(\..*|node_modules|__pycache__)$/;

/** @param {FileList | File[]} files from a file or folder chooser @returns {Chosen} */
export function chosen(files) {
  return named([...files].map((file) => [file.webkitRelativePath || file.name, file]));
}

/** @param {DataTransfer} transfer of a drop, folders among it @returns {Promise<Chosen>} */
export async function dropped(transfer) {
  // All at once: after the first wait the browser has taken the items away.
  const items = [...transfer.items].filter((item) => item.kind === "file");
  const roots = items.map((item) => item.webkitGetAsEntry?.() ?? item.getAsFile());
  /** @type {[string, File][]} */
  const found = [];
  for (const root of roots) if (root) await gather(root, found);
  return named(found);
}

/** @param {[string, File][]} files with their paths @returns {Chosen} */
function named(files) {
  const shown = files.filter(([path]) => !path.split("/").some((part) => HIDDEN.test(part)));
  return {found: shown.map(([path, file]) => ({file, name: nameOf(path)})), hidden: files.length - shown.length};
}

/** @param {string} path of a file beneath what was dropped: the outermost folder is not part of its name */
export function nameOf(path) {
  const parts = path.split("/").filter(Boolean);
  return (parts.length > 1 ? parts.slice(1) : parts).join("-");
}

/** @param {FileSystemEntry | File} entry @param {[string, File][]} found */
async function gather(entry, found) {
  if (entry instanceof File) found.push([entry.name, entry]);
  else if (entry.isFile)
    found.push([entry.fullPath.slice(1), await fileOf(/** @type {FileSystemFileEntry} */ (entry))]);
  else if (!HIDDEN.test(entry.name)) {
    for (const inner of await entriesOf(/** @type {FileSystemDirectoryEntry} */ (entry))) await gather(inner, found);
  }
}

/** @param {FileSystemFileEntry} entry @returns {Promise<File>} */
function fileOf(entry) {
  return new Promise((resolve, reject) => entry.file(resolve, reject));
}

/** @param {FileSystemDirectoryEntry} folder @returns {Promise<FileSystemEntry[]>} */
async function entriesOf(folder) {
  const reader = folder.createReader();
  const all = [];
  for (;;) {
    // A folder is read in parts, until one is empty.
    const part = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (part.length === 0) return all;
    all.push(...part);
  }
}

/** @param {string} name @returns {string} the same name with a number before its suffix */
export function numbered(name) {
  const dot = name.lastIndexOf(".");
  const [stem, suffix] = dot > 0 ? [name.slice(0, dot), name.slice(dot)] : [name, ""];
  const counted = /^(.*)-(\d{1,3})$/.exec(stem);
  return counted ? `${counted[1]}-${Number(counted[2]) + 1}${suffix}` : `${stem}-2${suffix}`;
}
