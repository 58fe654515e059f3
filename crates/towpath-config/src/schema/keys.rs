//! Keys of the configuration, by table, as the schema has them.

use serde_json::{Map, Value};

/// A table of the configuration.
pub(crate) struct Section {
    /// Names of the tables that lead to it; empty for the file itself.
    pub(crate) path: Vec<String>,
    /// Returns true for an array of tables, which the file may have many of.
    pub(crate) is_array: bool,
    /// Description.
    pub(crate) about: String,
    /// Its keys, the required ones first.
    pub(crate) keys: Vec<Key>,
}

/// A key of a table.
pub(crate) struct Key {
    pub(crate) name: String,
    /// Description; it is empty if the type has no doc comment.
    pub(crate) about: String,
    pub(crate) kind: KeyKind,
    /// Name of the type for people.
    pub(crate) type_name: String,
    /// Unit of a bare number.
    pub(crate) unit: Option<String>,
    pub(crate) is_required: bool,
    pub(crate) default: Option<Value>,
    /// Default that depends on other settings, in words.
    pub(crate) default_text: Option<String>,
    /// Example; the default without one.
    pub(crate) example: Option<Value>,
    /// Values of an enumeration, with their descriptions.
    pub(crate) choices: Vec<(String, String)>,
}

impl Key {
    /// Returns the environment variable that sets the key: keys of the server have one.
    pub(crate) fn variable(&self, section: &Section) -> Option<String> {
        if section.path.first().is_none_or(|first| first != "server") {
            return None;
        }
        let names = section.path.iter().chain([&self.name]).map(|name| name.to_ascii_uppercase());
        Some(format!("TOWPATH_{}", names.collect::<Vec<_>>().join("_")))
    }
}

/// Form of a value, by which a text of the environment is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyKind {
    Text,
    Number,
    /// Text with a unit, or a number.
    Quantity,
    Boolean,
    Texts,
    /// Anything else.
    Other,
}

impl Section {
    /// Returns the heading, such as `[server]` or `[[feed]]`.
    pub(crate) fn heading(&self) -> String {
        let path = self.path.join(".");
        if self.is_array { format!("[[{path}]]") } else { format!("[{path}]") }
    }
}

/// Returns the tables of the configuration. The file itself is the first.
pub(crate) fn sections(schema: &Value) -> Vec<Section> {
    let mut sections = Vec::new();
    let reader = SectionReader { schema };
    reader.section(schema, &[], false, &mut sections);
    sections
}

struct SectionReader<'a> {
    schema: &'a Value,
}

impl<'a> SectionReader<'a> {
    fn section(&self, table: &'a Value, path: &[String], is_array: bool, found: &mut Vec<Section>) {
        let place = found.len();
        let about = text(table, "description");
        found.push(Section { path: path.to_vec(), is_array, about, keys: Vec::new() });
        let required = table["required"].as_array().cloned().unwrap_or_default();
        let mut keys = Vec::new();
        for (name, property) in table["properties"].as_object().into_iter().flatten() {
            let (target, is_array) = self.table_of(property);
            if let Some(table) = target {
                let mut path = path.to_vec();
                path.push(name.clone());
                self.section(table, &path, is_array, found);
            } else {
                keys.push(self.key(name, property, required.iter().any(|required| required == name)));
            }
        }
        // Stable: apart from that the keys are in alphabetical order.
        keys.sort_by_key(|key| !key.is_required);
        found[place].keys = keys;
    }

    /// Follows references. The members of the referring value stay visible to the caller only.
    fn resolve(&self, value: &'a Value) -> &'a Value {
        let mut value = value;
        loop {
            let reference = value["$ref"].as_str().or_else(|| match value["allOf"].as_array()?.as_slice() {
                [only] => only["$ref"].as_str(),
                _ => None,
            });
            let Some(name) = reference.and_then(|reference| reference.strip_prefix("#/$defs/")) else {
                return value;
            };
            value = &self.schema["$defs"][name];
        }
    }

    /// Returns the table that a property is, and true if it is an array of tables.
    fn table_of(&self, property: &'a Value) -> (Option<&'a Value>, bool) {
        let target = self.resolve(property);
        if target["type"] == "array" {
            let items = self.resolve(&target["items"]);
            return (items.get("properties").map(|_| items), true);
        }
        (target.get("properties").map(|_| target), false)
    }

    fn key(&self, name: &str, property: &'a Value, is_required: bool) -> Key {
        let target = self.resolve(property);
        let member = |name: &str| property.get(name).or_else(|| target.get(name));
        let described = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
        let default = property.get("default").cloned();
        let default = default.filter(|value| value.as_array().is_none_or(|list| !list.is_empty()));
        let example = member("examples").and_then(|examples| examples.get(0)).cloned();
        let choices = self.choices(target);
        let first_choice = choices.iter().map(|(value, _)| Value::from(value.clone())).next();
        Key {
            name: name.to_owned(),
            about: text(property, "description"),
            kind: self.kind(target),
            type_name: self.type_name(target),
            unit: described(member("x-unit")),
            is_required,
            default_text: described(member("x-default")),
            example: example.or_else(|| default.clone()).or(first_choice),
            default,
            choices,
        }
    }

    fn choices(&self, target: &Value) -> Vec<(String, String)> {
        let described = target["oneOf"].as_array().into_iter().flatten().filter_map(|choice| {
            let value = choice["const"].as_str()?;
            Some((value.to_owned(), text(choice, "description")))
        });
        let described: Vec<_> = described.collect();
        if !described.is_empty() {
            return described;
        }
        let plain = target["enum"].as_array().into_iter().flatten();
        plain.filter_map(|value| Some((value.as_str()?.to_owned(), String::new()))).collect()
    }

    fn kind(&self, target: &'a Value) -> KeyKind {
        if target.get("x-unit").is_some() || target.get("enum").is_some() {
            return if target.get("enum").is_some() { KeyKind::Text } else { KeyKind::Quantity };
        }
        match target["type"].as_str() {
            Some("string") => KeyKind::Text,
            Some("integer" | "number") => KeyKind::Number,
            Some("boolean") => KeyKind::Boolean,
            Some("array") if self.kind(self.resolve(&target["items"])) == KeyKind::Text => KeyKind::Texts,
            _ if target["x-type"].as_str().is_some_and(|name| name.starts_with("address")) => KeyKind::Texts,
            _ => KeyKind::Other,
        }
    }

    fn type_name(&self, target: &'a Value) -> String {
        if let Some(name) = target["x-type"].as_str() {
            return name.to_owned();
        }
        if target.get("enum").is_some() {
            return "one of the values below".to_owned();
        }
        match target["type"].as_str() {
            Some("string") => "text".to_owned(),
            Some("integer") => "whole number".to_owned(),
            Some("number") => "number".to_owned(),
            Some("boolean") => "`true` or `false`".to_owned(),
            Some("array") => format!("list: {}", self.type_name(self.resolve(&target["items"]))),
            Some("object") => "table of texts".to_owned(),
            _ => {
                let choices = target["anyOf"].as_array().into_iter().flatten();
                let names: Vec<_> = choices.map(|choice| self.type_name(self.resolve(choice))).collect();
                if names.is_empty() { "value".to_owned() } else { names.join(", or ") }
            }
        }
    }
}

fn text(value: &Value, name: &str) -> String {
    let members: Option<&Map<String, Value>> = value.as_object();
    let text = members.and_then(|members| members.get(name)).and_then(Value::as_str).unwrap_or_default();
    // Doc comments are broken into lines for the source.
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
