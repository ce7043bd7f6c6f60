//! Command-line flags of the settings, generated from their declarations.

use std::{collections::BTreeMap, fmt, marker::PhantomData, path::PathBuf};

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, value_parser};

use super::settings::{FlagScope, SETTINGS, Setting};

/// Name of the flag for the configuration file, which is no setting.
const CONFIG_FLAG: &str = "config";

/// Values of setting flags. They stay text: the configuration validates the values of all sources by the same
/// rules.
#[derive(Clone, Debug, Default)]
pub(crate) struct CliValues {
    /// `--config`
    pub(crate) config_file: Option<PathBuf>,
    values: BTreeMap<&'static str, Vec<String>>,
    /// The flags whose names differ from those of their settings, by setting.
    flag_names: BTreeMap<&'static str, &'static str>,
}

impl CliValues {
    /// No values except the path of the configuration file.
    pub(crate) fn from_file(config_file: Option<PathBuf>) -> Self {
        Self { config_file, ..Self::default() }
    }

    /// Adds values of a setting, one per occurrence of the flag.
    pub(crate) fn with(mut self, setting: &'static str, values: impl IntoIterator<Item = String>) -> Self {
        self.values.entry(setting).or_default().extend(values);
        self
    }

    /// As [`Self::with`], for values of a flag with another name. Errors name the flag.
    pub(crate) fn with_flag(
        mut self,
        flag: &'static str,
        setting: &'static str,
        values: impl IntoIterator<Item = String>,
    ) -> Self {
        self.flag_names.insert(setting, flag);
        self.with(setting, values)
    }

    /// Names of the flags, by setting. Other flags have the names of their settings.
    pub(crate) const fn flag_names(&self) -> &BTreeMap<&'static str, &'static str> {
        &self.flag_names
    }

    /// Sets the only value of a setting.
    pub(crate) fn replacing(mut self, setting: &'static str, value: String) -> Self {
        self.values.insert(setting, vec![value]);
        self
    }

    /// Values of a setting, one per occurrence of the flag.
    pub(crate) fn get(&self, setting: &str) -> &[String] {
        self.values.get(setting).map_or(&[], Vec::as_slice)
    }
}

/// Selects the settings for which a command has flags.
pub(crate) trait FlagSelection: fmt::Debug + Default {
    /// True if the command has `--config`.
    const HAS_CONFIG_FLAG: bool;

    /// Reports if the command has the flag of a setting.
    fn includes(setting: &Setting) -> bool;
}

/// The settings of `run` and `config`: all.
#[derive(Debug, Default)]
pub(crate) struct RunSelection;

impl FlagSelection for RunSelection {
    const HAS_CONFIG_FLAG: bool = true;

    fn includes(_: &Setting) -> bool {
        true
    }
}

/// The settings of `dev`: all but those of the connection to a cluster, those of node roles, and those whose
/// names start with `node-deployment`.
#[derive(Debug, Default)]
pub(crate) struct DevSelection;

impl FlagSelection for DevSelection {
    const HAS_CONFIG_FLAG: bool = true;

    fn includes(setting: &Setting) -> bool {
        setting.group.scope == FlagScope::Process
    }
}

/// The settings of commands that use a cluster and run no roles: `kubeconfig` and `context`.
#[derive(Debug, Default)]
pub(crate) struct ConnectionSelection;

impl FlagSelection for ConnectionSelection {
    const HAS_CONFIG_FLAG: bool = false;

    fn includes(setting: &Setting) -> bool {
        ["kubeconfig", "context"].contains(&setting.name.as_str())
    }
}

/// Flags of the selected settings, for `#[command(flatten)]`.
#[derive(Debug, Default)]
pub(crate) struct SettingFlags<S> {
    /// Values of the flags.
    pub(crate) values: CliValues,
    selection: PhantomData<S>,
}

impl<S: FlagSelection> SettingFlags<S> {
    fn flags() -> impl Iterator<Item = Arg> {
        let config = Arg::new(CONFIG_FLAG)
            .long(CONFIG_FLAG)
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .help("TOML file with settings [default: $COFFERDAM_CONFIG]");
        let settings = SETTINGS.iter().filter(|setting| S::includes(setting)).filter_map(Setting::flag);
        S::HAS_CONFIG_FLAG.then_some(config).into_iter().chain(settings)
    }
}

impl<S: FlagSelection> Args for SettingFlags<S> {
    fn augment_args(command: Command) -> Command {
        command.args(Self::flags())
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<S: FlagSelection> FromArgMatches for SettingFlags<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        if S::HAS_CONFIG_FLAG {
            self.values.config_file = matches.get_one::<PathBuf>(CONFIG_FLAG).cloned();
        }
        for setting in SETTINGS.iter().filter(|setting| S::includes(setting) && setting.flag().is_some()) {
            if let Some(values) = matches.get_many::<String>(&setting.name) {
                self.values.values.insert(&setting.name, values.cloned().collect());
            }
        }
        Ok(())
    }
}
