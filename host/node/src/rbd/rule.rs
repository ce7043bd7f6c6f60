//! Rules of the policy for kind `rbd`.

use serde::{Deserialize, Deserializer, de};

use super::{RbdImage, V1_PORT, V2_PORT, is_name, parse_fsid};
use crate::network::{PortalRule, PortalRuleError};

/// An invalid [`RbdRule`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RbdRuleError {
    /// A network or a port is invalid, or the rule lacks a setting.
    #[error(transparent)]
    Portal(#[from] PortalRuleError),
    /// An fsid is no UUID.
    #[error("the fsid {fsid:?} is invalid: expected a UUID, as `ceph fsid` prints it")]
    Fsid {
        /// The value.
        fsid: String,
    },
    /// A pool is invalid.
    #[error("the pool {pool:?} is invalid: expected POOL, POOL/NAMESPACE or POOL/*")]
    Pool {
        /// The value.
        pool: String,
    },
}

/// The namespaces of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Namespaces {
    /// All, with the default one.
    All,
    /// This one; empty for the default one.
    One(String),
}

/// An allowed pool.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PoolPattern {
    pool: String,
    namespaces: Namespaces,
}

impl PoolPattern {
    fn parse(text: &str) -> Result<Self, RbdRuleError> {
        let invalid = || RbdRuleError::Pool { pool: text.to_owned() };
        let (pool, namespaces) = match text.split_once('/') {
            None => (text, Namespaces::One(String::new())),
            Some((pool, "*")) => (pool, Namespaces::All),
            Some((pool, name)) if is_plain_name(name) => (pool, Namespaces::One(name.to_owned())),
            Some(_) => return Err(invalid()),
        };
        if is_plain_name(pool) { Ok(Self { pool: pool.to_owned(), namespaces }) } else { Err(invalid()) }
    }

    fn matches(&self, image: &RbdImage) -> bool {
        let has_namespace = match &self.namespaces {
            Namespaces::All => true,
            Namespaces::One(name) => *name == image.namespace,
        };
        has_namespace && self.pool == image.pool
    }
}

/// A `*` elsewhere than as a namespace looks like a pattern, but would be a part of the name.
fn is_plain_name(text: &str) -> bool {
    is_name(text) && !text.contains('*')
}

/// A rule of the policy: clusters, monitors and pools that volumes may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RbdRule {
    monitors: PortalRule,
    cluster_fsids: Vec<String>,
    pools: Vec<PoolPattern>,
}

impl RbdRule {
    /// Creates a rule. A network is an address or a network of monitors; a pool is `POOL` for its default
    /// namespace, `POOL/NAMESPACE`, or `POOL/*` for all namespaces.
    ///
    /// # Errors
    /// [`RbdRuleError`]
    pub fn new(
        networks: &[String],
        ports: &[u16],
        cluster_fsids: &[String],
        pools: &[String],
    ) -> Result<Self, RbdRuleError> {
        let others = [("cluster-fsids", cluster_fsids.len()), ("pools", pools.len())];
        let fsid = |text: &String| parse_fsid(text).ok_or_else(|| RbdRuleError::Fsid { fsid: text.clone() });
        Ok(Self {
            monitors: PortalRule::new(networks, ports, &others)?,
            cluster_fsids: cluster_fsids.iter().map(fsid).collect::<Result<_, _>>()?,
            pools: pools.iter().map(|text| PoolPattern::parse(text)).collect::<Result<_, _>>()?,
        })
    }

    /// Returns true if the rule allows the cluster, the pool and all monitors.
    pub(crate) fn allows(&self, image: &RbdImage) -> bool {
        self.cluster_fsids.contains(&image.cluster_fsid)
            && self.pools.iter().any(|pattern| pattern.matches(image))
            && image.monitors.iter().all(|monitor| self.monitors.allows(*monitor))
    }
}

impl<'de> Deserialize<'de> for RbdRule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "kebab-case", deny_unknown_fields)]
        struct Fields {
            networks: Vec<String>,
            #[serde(default = "default_ports")]
            ports: Vec<u16>,
            cluster_fsids: Vec<String>,
            pools: Vec<String>,
        }
        let Fields { networks, ports, cluster_fsids, pools } = Fields::deserialize(deserializer)?;
        Self::new(&networks, &ports, &cluster_fsids, &pools).map_err(de::Error::custom)
    }
}

fn default_ports() -> Vec<u16> {
    vec![V2_PORT, V1_PORT]
}

#[cfg(test)]
mod tests {
    use super::{super::RbdFields, *};

    const FSID: &str = "0f6d1e52-3f3c-4e0a-9d0e-3f5f2f1b7a10";
    const OTHER: &str = "11111111-3f3c-4e0a-9d0e-3f5f2f1b7a10";

    fn rule(
        networks: &[&str],
        ports: &[u16],
        fsids: &[&str],
        pools: &[&str],
    ) -> Result<RbdRule, RbdRuleError> {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        RbdRule::new(&texts(networks), ports, &texts(fsids), &texts(pools))
    }

    #[test]
    fn a_rule_allows_clusters_monitors_and_pools() {
        let rule = rule(&["10.0.0.0/24"], &[3300, 6789], &[FSID], &["one", "two/a", "three/*"]).unwrap();
        #[rustfmt::skip] // one row a case
        let table = [
            ("10.0.0.5",               FSID,  "one",   None,      true),
            ("10.0.0.5:3300",          FSID,  "one",   None,      true),
            ("10.0.0.5:6790",          FSID,  "one",   None,      false),
            ("10.0.0.5,10.0.1.5",      FSID,  "one",   None,      false),
            ("[::ffff:10.0.0.5]:6789", FSID,  "one",   None,      true),
            ("10.0.0.5",               OTHER, "one",   None,      false),
            ("10.0.0.5",               FSID,  "one",   Some("a"), false),
            ("10.0.0.5",               FSID,  "two",   Some("a"), true),
            ("10.0.0.5",               FSID,  "two",   Some("b"), false),
            ("10.0.0.5",               FSID,  "two",   None,      false),
            ("10.0.0.5",               FSID,  "three", None,      true),
            ("10.0.0.5",               FSID,  "three", Some("b"), true),
            ("10.0.0.5",               FSID,  "four",  None,      false),
        ];
        for (monitors, cluster_fsid, pool, namespace, expected) in table {
            let fields = RbdFields { monitors, cluster_fsid, pool, namespace, image: "a", image_id: "1" };
            let image = RbdImage::parse(fields).unwrap();
            assert_eq!(rule.allows(&image), expected, "{monitors} {cluster_fsid} {pool} {namespace:?}");
        }
    }

    #[test]
    fn invalid_rules_are_rejected() {
        #[rustfmt::skip] // one row a case
        let table = [
            (rule(&[], &[6789], &[FSID], &["a"]),               "has no networks"),
            (rule(&["10.0.0.5"], &[], &[FSID], &["a"]),         "has no ports"),
            (rule(&["10.0.0.5"], &[6789], &[], &["a"]),         "has no cluster-fsids"),
            (rule(&["10.0.0.5"], &[6789], &[FSID], &[]),        "has no pools"),
            (rule(&["10.0.0.5"], &[0], &[FSID], &["a"]),        "a port is 0"),
            (rule(&["mon"], &[6789], &[FSID], &["a"]),          "is neither an IP address nor a network"),
            (rule(&["10.0.0.5"], &[6789], &["a"], &["a"]),      "the fsid \"a\" is invalid"),
            (rule(&["10.0.0.5"], &[6789], &[FSID], &["*"]),     "the pool \"*\" is invalid"),
            (rule(&["10.0.0.5"], &[6789], &[FSID], &["a*"]),    "the pool \"a*\" is invalid"),
            (rule(&["10.0.0.5"], &[6789], &[FSID], &["a/b*"]),  "the pool \"a/b*\" is invalid"),
            (rule(&["10.0.0.5"], &[6789], &[FSID], &["a/"]),    "the pool \"a/\" is invalid"),
            (rule(&["10.0.0.5"], &[6789], &[FSID], &["a/b/c"]), "the pool \"a/b/c\" is invalid"),
        ];
        for (rule, expected) in table {
            let error = rule.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}: expected {expected}");
        }
    }
}
