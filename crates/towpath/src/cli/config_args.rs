//! Options that select the configuration, common to most commands.

use std::path::PathBuf;

use clap::Args;

use super::error::CliError;
use crate::config::Config;

/// Options that select the configuration.
#[derive(Debug, Clone, Args)]
pub(crate) struct ConfigArgs {
    /// The configuration file [default: towpath.toml, if it is there]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The data folder [default: the configuration's, or "data"]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

impl ConfigArgs {
    /// Loads the configuration; an option replaces its data folder.
    pub(super) fn load(&self) -> Result<Config, CliError> {
        let mut config = Config::load(self.config.as_deref())?;
        if let Some(data) = &self.data {
            config.server.data.clone_from(data);
        }
        Ok(config)
    }
}
