//! The table of settings: one line each drives flags' and variables' spelling, the defaults and what `config` prints.

/// What a setting's text in a flag or an environment variable stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
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
pub(crate) struct Key {
    /// Its name in the file; `--name` is the flag, `COFFERDAM_NAME` with underscores the variable.
    pub(crate) name: &'static str,
    /// How text is read.
    pub(crate) shape: Shape,
    /// What holds when nobody says anything; absent when nothing holds then.
    pub(crate) default: Option<&'static str>,
}

const fn key(name: &'static str, shape: Shape, default: Option<&'static str>) -> Key {
    Key { name, shape, default }
}

/// Every setting, in the order in which people think of them. The sidecars' defaults where they have the flag, but for
/// `timeout`: theirs, 10 s, is too short for many arrays.
pub(crate) const KEYS: [Key; 47] = [
    key("role", Shape::List, None),
    key("backend", Shape::Backends, None),
    key("csi-address", Shape::Text, None),
    key("csi-socket", Shape::Text, None),
    key("socket-mode", Shape::Text, Some("0600")),
    key("socket-group", Shape::Text, None),
    key("kubeconfig", Shape::Text, None),
    key("context", Shape::Text, None),
    key("namespace", Shape::Text, None),
    key("http-endpoint", Shape::Text, None),
    key("timeout", Shape::Text, Some("1m")),
    key("drain-timeout", Shape::Text, Some("30s")),
    key("volume-name-prefix", Shape::Text, Some("pvc")),
    key("retry-interval-start", Shape::Text, Some("1s")),
    key("retry-interval-max", Shape::Text, Some("5m")),
    key("worker-threads", Shape::Number, None),
    key("workers", Shape::Number, Some("10")),
    key("resync-period", Shape::Text, Some("10m")),
    key("handle-volume-inuse-error", Shape::Bool, Some("true")),
    key("extra-modify-metadata", Shape::Bool, Some("false")),
    key("resync", Shape::Text, Some("10m")),
    key("reconcile-sync", Shape::Text, Some("1m")),
    key("max-entries", Shape::Number, Some("0")),
    key("default-fstype", Shape::Text, None),
    key("extra-create-metadata", Shape::Bool, Some("false")),
    key("strict-topology", Shape::Bool, Some("false")),
    key("immediate-topology", Shape::Bool, Some("true")),
    key("node-deployment", Shape::Bool, Some("false")),
    key("node-deployment-immediate-binding", Shape::Bool, Some("true")),
    key("node-deployment-base-delay", Shape::Text, Some("20s")),
    key("node-deployment-max-delay", Shape::Text, Some("1m")),
    key("disable-force-detach-on-timeout", Shape::Bool, Some("false")),
    key("orphan-scan-interval", Shape::Text, Some("1h")),
    key("single-process", Shape::Bool, Some("false")),
    key("manifest", Shape::Text, None),
    key("csi-endpoint", Shape::Text, None),
    key("node-name", Shape::Text, None),
    key("node-records", Shape::Text, None),
    key("kubelet-root", Shape::List, Some("/var/lib/kubelet")),
    key("kubelet-registration-path", Shape::Text, None),
    key("plugin-registration-path", Shape::Text, Some("/registration")),
    key("probe-timeout", Shape::Text, Some("3s")),
    key("health-port", Shape::Number, None),
    key("node", Shape::Table, None),
    key("compilation-cache", Shape::Text, None),
    key("log", Shape::Text, Some("info")),
    key("log-format", Shape::Text, Some("text")),
];

impl Key {
    /// The environment variable.
    pub(crate) fn variable(&self) -> String {
        variable(self.name)
    }
}

/// The environment variable of a setting.
pub(crate) fn variable(name: &str) -> String {
    format!("COFFERDAM_{}", name.replace('-', "_").to_ascii_uppercase())
}
