//! `postgres://user@host/database[?schema=…&table=…]`.

use std::fmt;

use url::Url;

use super::address::PgAddress;
use crate::tables::TableOptions;

/// A database with the tables of a sink.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresDestination {
    pub(super) address: PgAddress,
    /// Schema of the tables; `None` for the first of the user's search path.
    pub(super) schema: Option<String>,
    pub(super) tables: TableOptions,
}

impl PostgresDestination {
    /// Parses a URL. Options that are none of ours are those of libpq, such as `sslmode` and `sslrootcert`.
    ///
    /// A URL without a password takes `password`, else the variable `PGPASSWORD`.
    ///
    /// # Errors
    ///
    /// The message for a bad URL, without its password.
    pub fn parse(text: &str, password: Option<&str>) -> Result<Self, String> {
        let mut url = Url::parse(text).map_err(|e| format!("it is no URL: {e}"))?;
        let mut query = crate::query::Query::parse(url.query().unwrap_or_default());
        let tables = TableOptions::take(&mut query)?;
        let schema = query.take("schema");
        if schema.as_ref().is_some_and(|name| name.is_empty() || name.len() > 63 || name.contains('\0')) {
            return Err("schema has 1 to 63 bytes".into());
        }
        let ours = ["table", "changes", "search", "schema"];
        let left: Vec<(String, String)> =
            url.query_pairs().into_owned().filter(|(name, _)| !ours.contains(&name.as_str())).collect();
        url.set_query(None);
        for (name, value) in left {
            url.query_pairs_mut().append_pair(&name, &value);
        }
        let variable = std::env::var("PGPASSWORD").ok();
        let address = PgAddress::parse(url, password.or(variable.as_deref()))?;
        Ok(Self { address, schema, tables })
    }
}

impl fmt::Display for PostgresDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

impl fmt::Debug for PostgresDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("PostgresDestination");
        debug
            .field("address", &self.address)
            .field("schema", &self.schema)
            .field("tables", &self.tables)
            .finish()
    }
}
