//! Rules of the drafts and RFC 5005 for a document and its neighbours, as a table.

crate::report::rules! {
    NEWEST: "RFC 5005 §4" Must "The newest document exists";
    LINKED: "draft-00 §4" Must "Linked documents exist";
    AVAILABLE: "RFC 5005 §4.1" Should "Linked documents exist";
    HAS_THIS: "draft-00 §4" Should "A document with the flag 1 has a link 'this'";
    THIS_URI: "draft-00 §4" Must "The target of 'this' is a URI that can be dereferenced";
    PREV_URI: "draft-00 §4" Must "The target of 'prev' is a URI that can be dereferenced";
    ARCHIVE_URI: "RFC 5005 §4" Must "Links between documents are URIs";
    COMPLETE: "draft-01 §3" Must "A complete document links to no older one";
    SUBSCRIPTION: "draft-04 §4" Should "The subscription document is not marked as an archive";
    THIS_UNIQUE: "draft-00 §4" Must "The target of 'this' is unique to the document";
    THIS_ENTRIES: "draft-00 §4" Should "The document at 'this' has the entries of the document that names it";
    THIS_STAYS: "draft-00 §4" Should "The document at 'this' does not change";
    PREV_THIS: "draft-00 §4" Must "The target of 'prev' is the last document's 'this'";
    UPDATED_ORDER: "RFC 5005 §4" Should "Older documents are not updated later than newer ones";
    VERSION_DATES: "RFC 5005 §4.1" Should "Two versions of an entry have different dates";
    MARKED: "RFC 5005 §4" Should "Archive documents have fh:archive";
    CURRENT: "RFC 5005 §4" Should "Archive documents name the subscription document as 'current'";
    NEXT_ARCHIVE: "RFC 5005 §4" Should "Archive documents name the archive after them as 'next-archive'";
    ARCHIVES_STAY: "RFC 5005 §4" Should "Archive documents do not change";
    NO_LOOP: "RFC 5005 §4" Must "The documents form no loop";
    HISTORY: "RFC 5005 §4" Advice "The feed has a history";
    NOT_MODIFIED: "RFC 9110 §13" Should "A conditional request for an unchanged document gets 304";
    VALIDATORS: "RFC 9110 §8.8" Should "The newest document has an ETag or a Last-Modified";
}
