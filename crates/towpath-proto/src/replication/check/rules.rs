//! Rules of the text, as a table. Sections are named by their headings, because the text has no numbers.

crate::report::rules! {
    PAGE_HEADERS: "Page format" Must "A page has a multipart Content-Type with a boundary, and a Last-Modified";
    WHOLE: "Page format" Must "A page is whole, well-formed multipart";
    NOT_EMPTY: "Page format" Must "A page has at least one entity";
    PAGE_TIME: "Last-Modified" Should "A page's Last-Modified is its last entity's";
    LENGTH: "Content-Length" Must "A Content-Length is the size of the entity's content";
    BOUNDARY: "Page format" Must "The boundary is not found in the content";
    ENTITY_TYPE: "Required and optional entity headers" Must "Every entity has a Content-Type";
    ENTITY_TIME: "Required and optional entity headers" Must "Every entity has a Last-Modified";
    ENTITY_ID: "Additional headers for feed entities" Must "Every entity of a feed has a Content-ID";
    ENTITY_OPERATION: "Additional headers for feed entities" Must "Every entity of a feed has an Operation-Type";
    OPERATION: "Operation-Type" Must "An Operation-Type is PUT, PATCH or DELETE";
    OPERATION_FORM: "Operation-Type" Should "An Operation-Type is written as http-equiv=";
    TIME_FORM: "Last-Modified" Must "Timestamps have the form of HTTP";
    TIME_EXACT: "Last-Modified" Should "Timestamps are written as IMF-fixdate";
    TIME_ORDER: "Last-Modified" Must "Timestamps never decrease within a page";
    NO_LOOP: "Pagination" Must "The feed forms no loop";
    NEXT: "Pagination" Must "A next link leads to a page";
    FEED_HEADERS: "Required headers" Must "A feed page has its headers";
    ADJACENT: "Pagination" Must "The links of adjacent pages match";
    ANSWERED: "Concepts" Must "A request results in status 200 and a whole answer";
    SEALED: "Immutability of pages" Must "A page with a next link does not change";
    NEWEST_GROWS: "Immutability of pages" Must "The newest page only gains entities";
    SNAPSHOT_STAYS: "Immutability of pages" Must "A snapshot's page does not change";
    HEAD: "Pagination" Must "Pages answer HEAD requests";
    UNIQUE_ID: "Content-ID" Must "A Content-ID is unique within the feed";
    TIME_ACROSS: "Last-Modified" Must "Timestamps never decrease across pages";
    NOT_ITSELF: "Pagination" Must "No page links to itself";
    SAME_HEADERS: "Pagination" Must "HEAD and GET have the same headers";
    INDEX_STAYS: "Immutability of pages" Must "A snapshot's index does not change";
    INDEX_TYPE: "Snapshot Index Format" Must "The index has the content type application/json";
    INDEX_SCHEMA: "Snapshot Index Format" Must "The index fits its schema";
    INDEX_ADDRESSES: "Snapshot Index Format" Must "Page addresses are absolute";
}
