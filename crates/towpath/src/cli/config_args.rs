//! Options that select the configuration, common to most commands.

use std::path::{Path, PathBuf};

use clap::Args;

use super::error::CliError;
use crate::config::{Config, ConfigError, DEFAULT_FILE};
use crate::sink;

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
        self.read().map_err(CliError::from)
    }

    /// Loads the configuration as [`Self::load`] does, with the mistakes one by one.
    pub(super) fn read(&self) -> Result<Config, ConfigError> {
        let mut config = Config::load_checked(self.config.as_deref(), &sink::check)?;
        if let Some(data) = &self.data {
            config.server.data.clone_from(data);
        }
        Ok(config)
    }

    /// Returns the data folder that [`Self::load`] tells, without reading the feeds of the configuration.
    pub(super) fn data_folder(&self) -> Result<PathBuf, CliError> {
        let found = self.data.clone().or_else(|| Config::data_folder(self.config.as_deref()));
        found.map_or_else(|| Ok(self.load()?.server.data), Ok)
    }

    /// Returns true if the user names no data folder, and none is where it would be by default.
    pub(super) fn is_without_folder(&self, config: &Config) -> bool {
        let is_named = self.config.is_some() || self.data.is_some() || Path::new(DEFAULT_FILE).is_file();
        !is_named && !config.server.data.exists()
    }
}
