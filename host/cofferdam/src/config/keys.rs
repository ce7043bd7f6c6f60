//! The table of settings: one line each drives flags' and variables' spelling, the defaults and what `config`
//! prints.

/// What a setting's text in a flag or an environment variable stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueKind {
    /// The text itself.
    Text,
    /// A whole number.
    Number,
    /// `true` or `false`.
    Bool,
    /// Items between commas.
    List,
    /// Driver files and sockets: the `file` or `csi` of entries of the table `backend`.
    Backends,
    /// A table that only the file has.
    Table,
}

/// A setting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConfigKey {
    /// Its name in the file; `--name` is the flag, `COFFERDAM_NAME` with underscores the variable.
    pub(crate) name: &'static str,
    /// How text is read.
    pub(crate) kind: ValueKind,
    /// What holds when nobody says anything; absent when nothing holds then.
    pub(crate) default: Option<&'static str>,
}

const fn key(name: &'static str, kind: ValueKind, default: Option<&'static str>) -> ConfigKey {
    ConfigKey { name, kind, default }
}

/// Every setting, in the order in which people think of them. The sidecars' defaults where they have the
/// flag, but for `timeout`: theirs, 10 s, is too short for many arrays.
pub(crate) const KEYS: [ConfigKey; 47] = [
    key("role", ValueKind::List, None),
    key("backend", ValueKind::Backends, None),
    key("csi-address", ValueKind::Text, None),
    key("csi-socket", ValueKind::Text, None),
    key("socket-mode", ValueKind::Text, Some("0600")),
    key("socket-group", ValueKind::Text, None),
    key("kubeconfig", ValueKind::Text, None),
    key("context", ValueKind::Text, None),
    key("namespace", ValueKind::Text, None),
    key("http-endpoint", ValueKind::Text, None),
    key("timeout", ValueKind::Text, Some("1m")),
    key("drain-timeout", ValueKind::Text, Some("30s")),
    key("volume-name-prefix", ValueKind::Text, Some("pvc")),
    key("retry-interval-start", ValueKind::Text, Some("1s")),
    key("retry-interval-max", ValueKind::Text, Some("5m")),
    key("worker-threads", ValueKind::Number, None),
    key("workers", ValueKind::Number, Some("10")),
    key("resync-period", ValueKind::Text, Some("10m")),
    key("handle-volume-inuse-error", ValueKind::Bool, Some("true")),
    key("extra-modify-metadata", ValueKind::Bool, Some("false")),
    key("resync", ValueKind::Text, Some("10m")),
    key("reconcile-sync", ValueKind::Text, Some("1m")),
    key("max-entries", ValueKind::Number, Some("0")),
    key("default-fstype", ValueKind::Text, None),
    key("extra-create-metadata", ValueKind::Bool, Some("false")),
    key("strict-topology", ValueKind::Bool, Some("false")),
    key("immediate-topology", ValueKind::Bool, Some("true")),
    key("node-deployment", ValueKind::Bool, Some("false")),
    key("node-deployment-immediate-binding", ValueKind::Bool, Some("true")),
    key("node-deployment-base-delay", ValueKind::Text, Some("20s")),
    key("node-deployment-max-delay", ValueKind::Text, Some("1m")),
    key("disable-force-detach-on-timeout", ValueKind::Bool, Some("false")),
    key("orphan-scan-interval", ValueKind::Text, Some("1h")),
    key("single-process", ValueKind::Bool, Some("false")),
    key("manifest", ValueKind::Text, None),
    key("csi-endpoint", ValueKind::Text, None),
    key("node-name", ValueKind::Text, None),
    key("node-records", ValueKind::Text, None),
    key("kubelet-root", ValueKind::List, Some("/var/lib/kubelet")),
    key("kubelet-registration-path", ValueKind::Text, None),
    key("plugin-registration-path", ValueKind::Text, Some("/registration")),
    key("probe-timeout", ValueKind::Text, Some("3s")),
    key("health-port", ValueKind::Number, None),
    key("node", ValueKind::Table, None),
    key("compilation-cache", ValueKind::Text, None),
    key("log", ValueKind::Text, Some("info")),
    key("log-format", ValueKind::Text, Some("text")),
];

impl ConfigKey {
    /// The environment variable.
    pub(crate) fn env_var(&self) -> String {
        env_var_name(self.name)
    }
}

/// The environment variable of a setting.
pub(crate) fn env_var_name(name: &str) -> String {
    format!("COFFERDAM_{}", name.replace('-', "_").to_ascii_uppercase())
}
