// @ts-check
/** Documents view: collections, documents and uploads. */

import {h, replace} from "../dom.js";
import {pageHeader} from "../widgets.js";
import {AddPanel} from "./documents/adding.js";
import {CollectionList} from "./documents/collections.js";
import {uploads} from "./documents/queue.js";
import {DocumentTable, ALL_DOCUMENTS_LABEL} from "./documents/table.js";
import {UploadList} from "./documents/uploads.js";

export const title = "Documents";

/** @param {any} context */
export function view(context) {
  uploads.setOwner(`${context.me.tenant}/${context.me.user}`);
  const collections = new CollectionList(context, () => showSelected());
  const documents = new DocumentTable(context, collections.about);
  const addPanel = context.me.may_write ? new AddPanel(context, collections) : null;
  collections.select(context.params.collection ?? "");

  const showSelected = () => {
    addPanel?.draw();
    replace(documents.heading, collections.current?.name || collections.selectedId || ALL_DOCUMENTS_LABEL);
  };
  const page = h(
    "div",
    {class: "documents-view"},
    pageHeader("Documents", "Documents that agents can search. New ones are converted and indexed in the background."),
    h(
      "div",
      {class: "documents-layout"},
      collections.element,
      h("div", {class: "documents-main"}, addPanel?.element, new UploadList(context.signal).element, documents.element),
    ),
    addPanel?.cover,
  );
  addPanel?.acceptDrops(page);
  subscribe(context, documents, collections);
  collections.load();
  documents.open(collections.selectedId, "");
  return page;
}

/** Subscribe to changes. @param {any} context @param {DocumentTable} documents @param {CollectionList} collections */
function subscribe(context, documents, collections) {
  const reload = () => {
    collections.loadSoon();
    documents.loadSoon();
  };
  context.events({
    documents: (/** @type {{documents: any[]}} */ data) => documents.applyChanges(data.documents),
    collections: reload,
    // Fetch what was missed while disconnected.
    open: reload,
  });
}
