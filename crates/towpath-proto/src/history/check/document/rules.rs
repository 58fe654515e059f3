//! Rules for single documents of each format, as tables.

/// RFC 4287, RFC 6721 and what both name.
pub(super) mod atom {
    use crate::report::rules;
    rules! {
        NAMESPACE: "RFC 4287 §1.2" Must "The namespace is that of Atom 1.0";
        LANGUAGE: "RFC 4287 §2" Must "xml:lang is a language tag";
        BASE: "RFC 4287 §2" Must "xml:base is an IRI reference";
        KNOWN_ELEMENT: "RFC 4287 §6.1" Should "Elements of Atom stand where RFC 4287 has them";
        KNOWN_ATTRIBUTE: "RFC 4287 §6.1" Should "Elements of Atom have the attributes of RFC 4287";
        NO_TEXT: "RFC 4287 §2" Should "Text stands only in elements for text";
        TEXT_ONLY: "RFC 4287 §2" Must "Dates, IRIs and names have no child elements";
        TEXT_TYPE: "RFC 4287 §3.1.1" Must "The type of a text is text, html or xhtml";
        PLAIN_TEXT: "RFC 4287 §3.1.1.1" Must "A plain text has no child elements";
        HTML_TEXT: "RFC 4287 §3.1.1.2" Must "An HTML text has no child elements: its markup is escaped";
        HTML_DIV: "RFC 4287 §3.1.1.2" Should "HTML could stand in a div: it has no html, head or body";
        XHTML_DIV: "RFC 4287 §3.1.1.3" Must "An XHTML text is one div of XHTML";
        PERSON_NAME: "RFC 4287 §3.2.1" Must "A person has one name";
        PERSON_NAMED: "RFC 4287 §3.2.1" Should "The name of a person is not empty";
        PERSON_URI: "RFC 4287 §3.2.2" Must "A person has at most one uri, which is an IRI reference";
        PERSON_EMAIL: "RFC 4287 §3.2.3" Must "A person has at most one email, which is an address";
        DATE: "RFC 4287 §3.3" Must "Dates are dates";
        FEED_ID: "RFC 4287 §4.1.1" Must "A feed has one id";
        FEED_TITLE: "RFC 4287 §4.1.1" Must "A feed has one title";
        FEED_UPDATED: "RFC 4287 §4.1.1" Must "A feed has one updated";
        FEED_GENERATOR: "RFC 4287 §4.1.1" Must "A feed has at most one generator";
        FEED_ICON: "RFC 4287 §4.1.1" Must "A feed has at most one icon";
        FEED_LOGO: "RFC 4287 §4.1.1" Must "A feed has at most one logo";
        FEED_RIGHTS: "RFC 4287 §4.1.1" Must "A feed has at most one rights";
        FEED_SUBTITLE: "RFC 4287 §4.1.1" Must "A feed has at most one subtitle";
        FEED_ALTERNATES: "RFC 4287 §4.1.1" Must "A feed has one alternate for each type and language";
        FEED_SELF: "RFC 4287 §4.1.1" Should "A feed has a link to itself";
        AUTHOR: "RFC 4287 §4.1.1" Must "The feed or each of its entries has an author";
        ENTRY_ID: "RFC 4287 §4.1.2" Must "An entry has one id";
        ENTRY_TITLE: "RFC 4287 §4.1.2" Must "An entry has one title";
        ENTRY_UPDATED: "RFC 4287 §4.1.2" Must "An entry has one updated";
        ENTRY_CONTENT: "RFC 4287 §4.1.2" Must "An entry has at most one content";
        ENTRY_PUBLISHED: "RFC 4287 §4.1.2" Must "An entry has at most one published";
        ENTRY_RIGHTS: "RFC 4287 §4.1.2" Must "An entry has at most one rights";
        ENTRY_SOURCE: "RFC 4287 §4.1.2" Must "An entry has at most one source";
        ENTRY_SUMMARY: "RFC 4287 §4.1.2" Must "An entry has at most one summary";
        ENTRY_ALTERNATES: "RFC 4287 §4.1.2" Must "An entry has one alternate for each type and language";
        ENTRY_TEXT: "RFC 4287 §4.1.2" Must "An entry has content or a link to an alternate";
        REFERENCE_SUMMARY: "RFC 4287 §4.1.2" Must "An entry with content by reference has a summary";
        ENCODED_SUMMARY: "RFC 4287 §4.1.2" Must "An entry with content in Base64 has a summary";
        CONTENT_TYPE: "RFC 4287 §4.1.3.1" Must "The type of content is text, html, xhtml or a media type that is not composite";
        CONTENT_SRC: "RFC 4287 §4.1.3.2" Must "The src of content is an IRI reference";
        CONTENT_EMPTY: "RFC 4287 §4.1.3.2" Must "Content with src is empty";
        CONTENT_SRC_TYPE: "RFC 4287 §4.1.3.2" Must "The type of content with src is a media type";
        CONTENT_SRC_TYPED: "RFC 4287 §4.1.3.2" Should "Content with src has a type";
        CONTENT_XML: "RFC 4287 §4.1.3.3" Should "Content of an XML media type is one element";
        CONTENT_TEXT: "RFC 4287 §4.1.3.3" Must "Content of a text media type has no child elements";
        CONTENT_BASE64: "RFC 4287 §4.1.3.3" Must "Content of any other media type is Base64";
        CATEGORY_TERM: "RFC 4287 §4.2.2.1" Must "A category has a term";
        CATEGORY_SCHEME: "RFC 4287 §4.2.2.2" Must "The scheme of a category is an IRI";
        GENERATOR_URI: "RFC 4287 §4.2.4" Must "The uri of a generator is an IRI reference";
        ICON: "RFC 4287 §4.2.5" Must "An icon is an IRI reference";
        LOGO: "RFC 4287 §4.2.8" Must "A logo is an IRI reference";
        FEED_ID_IRI: "RFC 4287 §4.2.6" Must "The feed's id is an absolute IRI";
        ENTRY_ID_IRI: "RFC 4287 §4.2.6" Must "An entry's id is an absolute IRI";
        OTHER_IDS: "RFC 4287 §4.2.6" Must "An entry has another id than its feed";
        LINK_HREF: "RFC 4287 §4.2.7.1" Must "A link has an href";
        LINK_IRI: "RFC 4287 §4.2.7.1" Must "A link leads to an IRI";
        LINK_REL: "RFC 4287 §4.2.7.2" Must "The rel of a link is a name or an IRI";
        LINK_TYPE: "RFC 4287 §4.2.7.3" Must "The type of a link is a media type";
        LINK_HREFLANG: "RFC 4287 §4.2.7.4" Must "The hreflang of a link is a language tag";
        LINK_LENGTH: "RFC 4287 §4.2.7.6" Must "The length of a link is a number";
        SOURCE: "RFC 4287 §4.2.11" Must "A source has each element of a feed's head at most as often as a feed";
        DELETED: "RFC 6721 §3" Must "A deleted entry has its ref and when";
        DELETED_REF: "RFC 6721 §3" Must "The ref of a deleted entry is an IRI";
        DELETED_BY: "RFC 6721 §3" Must "A deleted entry has at most one by, one comment and one source";
        DELETED_ONCE: "RFC 6721 §3" Must "No deletion of an entry stands in a document twice";
    }
}

/// Feed History's elements in the head of Atom and RSS.
pub(super) mod history {
    use crate::report::rules;
    rules! {
        FLAG: "draft-00 §3" Must "The flag is 0 or 1";
        INCREMENTAL_VALUE: "draft-04 §3" Must "fh:incremental is true or false";
        PREV_VALUE: "draft-04 §5" Must "fh:prev is a URI reference";
        STATEFUL: "draft-00 §3" Must "fh:Stateful occurs only in the feed's head, and only once";
        INCREMENTAL: "draft-04 §3" Must "fh:incremental occurs only in the feed's head, and only once";
        ARCHIVE: "draft-04 §4" Must "fh:archive occurs only in the feed's head, and only once";
        PREV: "draft-04 §5" Must "fh:prev occurs only in the feed's head, and only once";
        COMPLETE: "RFC 5005 §2" Must "fh:complete occurs only in the feed's head, and only once";
        COMPLETE_EMPTY: "RFC 5005 §2" Must "fh:complete is empty";
        ARCHIVE_EMPTY: "RFC 5005 §4" Must "fh:archive is empty";
    }
}

/// The specification of RSS 2.0, by the name of its part.
pub(super) mod rss {
    use crate::report::rules;
    rules! {
        NAMESPACE: "RSS 2.0, extending RSS" Should "The elements of RSS are in no namespace";
        VERSION: "RSS 2.0" Must "The rss element has a version";
        VERSION_2: "RSS 2.0" Should "The version is 2.0";
        CHANNEL: "RSS 2.0" Must "There is one channel";
        KNOWN_ELEMENT: "RSS 2.0, extending RSS" Must "Elements that RSS does not have are in a namespace";
        KNOWN_ATTRIBUTE: "RSS 2.0, extending RSS" Should "Elements have the attributes of the specification";
        NO_TEXT: "RSS 2.0" Should "Text stands only in elements for text";
        TEXT_ONLY: "RSS 2.0" Must "Elements for text have no child elements: markup is escaped";
        LANGUAGE_TAG: "XML 1.0 §2.12" Must "xml:lang is a language tag";
        BASE: "XML Base §3" Must "xml:base is an IRI reference";
        TITLE: "RSS 2.0, required channel elements" Must "A channel has a title";
        LINK: "RSS 2.0, required channel elements" Must "A channel has a link";
        DESCRIPTION: "RSS 2.0, required channel elements" Must "A channel has a description";
        URL: "RSS 2.0, comments" Must "The URLs of link and url begin with a registered scheme";
        LANGUAGE: "RSS 2.0, optional channel elements" Must "The language is a language tag";
        CONTACT: "RSS 2.0, optional channel elements" Must "managingEditor and webMaster are e-mail addresses";
        ONCE: "RSS 2.0, optional channel elements" Must "Optional channel elements occur once";
        DOCS: "RSS 2.0, optional channel elements" Must "docs is a URL";
        DATE: "RSS 2.0 and JSON Feed, dates" Must "Dates are dates";
        TTL: "RSS 2.0, ttl" Must "ttl is a number of minutes";
        CLOUD: "RSS 2.0, cloud" Must "A cloud has domain, port, path, registerProcedure and protocol";
        CLOUD_PORT: "RSS 2.0, cloud" Must "The port of a cloud is a number";
        CLOUD_PROTOCOL: "RSS 2.0, cloud" Must "The protocol of a cloud is xml-rpc, http-post or soap";
        IMAGE: "RSS 2.0, image" Must "An image has one url, title and link";
        IMAGE_SIZE: "RSS 2.0, image" Must "An image is at most 144 wide and 400 high";
        TEXT_INPUT: "RSS 2.0, textInput" Must "A textInput has one title, description, name and link";
        SKIP_HOURS: "RSS 2.0, skipHours" Must "skipHours has up to 24 hours from 0 to 23";
        SKIP_ONCE: "RSS 2.0, skipHours" Advice "Hours and days to skip are named once";
        SKIP_DAYS: "RSS 2.0, skipDays" Must "skipDays has up to seven names of days";
        ITEM_TEXT: "RSS 2.0, elements of item" Must "An item has a title or a description";
        ITEM_ONCE: "RSS 2.0, elements of item" Must "Elements of an item occur once";
        ITEM_GUID: "RSS 2.0, elements of item" Should "An item has a guid";
        ITEM_NAMED: "RSS 2.0, elements of item" Must "Each item has a guid, a link or other identification";
        GUIDS: "RSS 2.0, elements of item" Must "Items have different guids";
        AUTHOR: "RSS 2.0, author" Must "The author of an item is an e-mail address";
        COMMENTS: "RSS 2.0, comments of an item" Must "comments is a URL";
        ENCLOSURE: "RSS 2.0, enclosure" Must "An enclosure has url, length and type";
        ENCLOSURE_URL: "RSS 2.0, enclosure" Must "The url of an enclosure is an http URL";
        ENCLOSURE_LENGTH: "RSS 2.0, enclosure" Must "The length of an enclosure is a number of bytes";
        ENCLOSURE_TYPE: "RSS 2.0, enclosure" Must "The type of an enclosure is a media type";
        GUID_TEXT: "RSS 2.0, guid" Must "A guid is not empty";
        GUID_FLAG: "RSS 2.0, guid" Must "isPermaLink is true or false";
        GUID_URL: "RSS 2.0, guid" Must "A guid that is a permalink is a URL";
        SOURCE: "RSS 2.0, source" Must "A source has the url of its channel";
        ENCODED: "RSS content module" Should "An item has content:encoded once";
        RDF_ITEM: "RSS 1.0 §5.5" Must "An item has a title and a link";
    }
}

/// JSON Feed 1.1.
pub(super) mod json_feed {
    use crate::report::rules;
    rules! {
        VERSION: "JSON Feed 1.1" Must "A feed has the URL of the version as its version";
        TITLE: "JSON Feed 1.1" Must "A feed has a title";
        ITEMS: "JSON Feed 1.1" Must "A feed has an array of items";
        ID: "JSON Feed 1.1" Must "An item has an id that is text";
        CONTENT: "JSON Feed 1.1" Must "An item has content_html or content_text";
        IDS: "JSON Feed 1.1" Must "Items have different ids";
        DATE: "RSS 2.0 and JSON Feed, dates" Must "Dates are dates";
        TYPES: "JSON Feed 1.1" Must "Members have the types of the specification";
        URLS: "JSON Feed 1.1" Must "Members that hold URLs hold URLs";
        LANGUAGE: "JSON Feed 1.1" Must "A language is a language tag";
        AUTHOR: "JSON Feed 1.1" Must "An author has a name, a url or an avatar";
        ATTACHMENT: "JSON Feed 1.1" Must "An attachment has a url and a mime_type";
        MIME_TYPE: "JSON Feed 1.1" Must "The mime_type of an attachment is a media type";
        HUB: "JSON Feed 1.1" Must "A hub has a type and a url";
        NEXT: "JSON Feed 1.1" Must "next_url leads to another document than feed_url";
        EXTENSION: "JSON Feed 1.1" Must "Names of extensions begin with an underscore and a letter";
        EXTENSION_NAMES: "JSON Feed 1.1" Must "Names of extensions and of their members have no period";
        RECOMMENDED: "JSON Feed 1.1" Should "A feed has its feed_url";
        UNIQUE_NAMES: "RFC 8259 §4" Should "The names within an object are unique";
    }
}
