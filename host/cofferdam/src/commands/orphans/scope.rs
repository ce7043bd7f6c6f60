//! Namespaces whose orphan reports a command reads.

use std::fmt;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};

use crate::{cli::ReportScopeFlags, client::ClusterConnection};

/// Namespaces whose reports a command accepts.
///
/// A report is believed because of its namespace: every user who can write ConfigMaps in it can write one.
/// The API server records no writer that such a user cannot choose; `managedFields` has the name that the
/// client gave itself. So only the namespace that the user of the command named, or selected with the
/// context, is known to be that of a process of Cofferdam.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReportScope {
    /// One namespace.
    Namespace(String),
    /// All namespaces, also those of tenants.
    AllNamespaces,
}

impl ReportScope {
    /// The scope that the flags of a command select.
    pub(crate) fn from_flags(flags: &ReportScopeFlags, cluster: &ClusterConnection) -> Self {
        if flags.all_namespaces { Self::AllNamespaces } else { Self::Namespace(cluster.namespace.clone()) }
    }

    /// The ConfigMaps of the scope.
    pub(crate) fn api(&self, client: Client) -> Api<ConfigMap> {
        match self {
            Self::Namespace(namespace) => Api::namespaced(client, namespace),
            Self::AllNamespaces => Api::all(client),
        }
    }

    /// The end of a message about a missing report.
    pub(super) const fn hint(&self) -> &'static str {
        match self {
            Self::Namespace(_) => "; --namespace selects another namespace",
            Self::AllNamespaces => "",
        }
    }
}

impl fmt::Display for ReportScope {
    /// Part of a message about a missing report: `in namespace storage`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Namespace(namespace) => write!(f, "in namespace {namespace}"),
            Self::AllNamespaces => f.write_str("in any namespace"),
        }
    }
}
