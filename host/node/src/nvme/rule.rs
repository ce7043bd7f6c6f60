//! Rules of the policy for kind `nvme-tcp`.

use std::net::SocketAddr;

use serde::{Deserialize, Deserializer, de};

use super::{DEFAULT_PORT, MAX_NQN_BYTES, Nqn, NvmeNamespace, has_nqn_date, is_nqn_byte};
use crate::network::{PortalRule, PortalRuleError};

/// An invalid [`NvmeRule`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NvmeRuleError {
    /// A network or a port is invalid, or the rule lacks a setting.
    #[error(transparent)]
    Portal(#[from] PortalRuleError),
    /// A subsystem is not an NQN, or has `*` in another place than at its end.
    #[error(
        "the subsystem {subsystem:?} is invalid: expected an NQN such as nqn.2024-01.com.example:volumes, or \
         its beginning, with year, month and domain, and *"
    )]
    Subsystem {
        /// The value.
        subsystem: String,
    },
}

/// An allowed NQN, or with [`Self::is_prefix`] all that begin with the text.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SubsystemPattern {
    text: String,
    is_prefix: bool,
}

impl SubsystemPattern {
    fn parse(text: &str) -> Result<Self, NvmeRuleError> {
        let is_valid = match text.strip_suffix('*') {
            Some(prefix) => {
                prefix.len() <= MAX_NQN_BYTES && has_nqn_date(prefix) && prefix.bytes().all(is_nqn_byte)
            }
            None => Nqn::parse(text).is_ok(),
        };
        if !is_valid {
            return Err(NvmeRuleError::Subsystem { subsystem: text.to_owned() });
        }
        let (text, is_prefix) = text.strip_suffix('*').map_or((text, false), |prefix| (prefix, true));
        Ok(Self { text: text.to_owned(), is_prefix })
    }

    fn matches(&self, nqn: &Nqn) -> bool {
        if self.is_prefix { nqn.as_str().starts_with(&self.text) } else { nqn.as_str() == self.text }
    }
}

/// A rule of the policy: subsystems and their portals that volumes may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmeRule {
    portals: PortalRule,
    subsystems: Vec<SubsystemPattern>,
}

impl NvmeRule {
    /// Creates a rule. A network is an address or a network; a subsystem is an NQN, or its beginning and `*`.
    ///
    /// # Errors
    /// [`NvmeRuleError`]
    pub fn new(networks: &[String], ports: &[u16], subsystems: &[String]) -> Result<Self, NvmeRuleError> {
        Ok(Self {
            portals: PortalRule::new(networks, ports, &[("subsystems", subsystems.len())])?,
            subsystems: subsystems
                .iter()
                .map(|text| SubsystemPattern::parse(text))
                .collect::<Result<_, _>>()?,
        })
    }

    fn allows(&self, nqn: &Nqn, portal: SocketAddr) -> bool {
        self.portals.allows(portal) && self.subsystems.iter().any(|pattern| pattern.matches(nqn))
    }

    /// Returns the first portal of a namespace that no rule allows together with the subsystem.
    pub(crate) fn denied_portal(rules: &[Self], namespace: &NvmeNamespace) -> Option<SocketAddr> {
        let is_denied =
            |portal: &&SocketAddr| !rules.iter().any(|rule| rule.allows(&namespace.nqn, **portal));
        namespace.portals.iter().find(is_denied).copied()
    }
}

impl<'de> Deserialize<'de> for NvmeRule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "kebab-case", deny_unknown_fields)]
        struct Fields {
            networks: Vec<String>,
            #[serde(default = "default_ports")]
            ports: Vec<u16>,
            subsystems: Vec<String>,
        }
        let Fields { networks, ports, subsystems } = Fields::deserialize(deserializer)?;
        Self::new(&networks, &ports, &subsystems).map_err(de::Error::custom)
    }
}

fn default_ports() -> Vec<u16> {
    vec![DEFAULT_PORT]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(networks: &[&str], ports: &[u16], subsystems: &[&str]) -> Result<NvmeRule, NvmeRuleError> {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        NvmeRule::new(&texts(networks), ports, &texts(subsystems))
    }

    #[test]
    fn every_portal_needs_a_rule_that_allows_it_with_the_subsystem() {
        let rules = [
            rule(&["10.0.0.0/24", "2001:db8::/32"], &[4420, 4421], &["nqn.2024-01.com.example:one"]).unwrap(),
            rule(&["10.1.0.5"], &[4420], &["nqn.2024-01.com.example:k8s-*"]).unwrap(),
        ];
        #[rustfmt::skip] // one row a case
        let table = [
            ("10.0.0.5",                 "one",   None),
            ("10.0.0.5:4421",            "one",   None),
            ("[::ffff:10.0.0.5]:4420",   "one",   None),
            ("[2001:DB8::5]",            "one",   None),
            ("10.0.0.5:4422",            "one",   Some("10.0.0.5:4422")),
            ("10.0.1.5",                 "one",   Some("10.0.1.5:4420")),
            ("10.0.0.5,10.0.1.5",        "one",   Some("10.0.1.5:4420")),
            ("10.0.0.5",                 "one-2", Some("10.0.0.5:4420")),
            ("10.0.0.5",                 "k8s-1", Some("10.0.0.5:4420")),
            ("10.1.0.5",                 "k8s-1", None),
            ("10.1.0.5",                 "k8s-",  None),
            ("10.1.0.5",                 "K8S-1", Some("10.1.0.5:4420")),
            ("10.1.0.5,10.0.0.5",        "one",   Some("10.1.0.5:4420")),
        ];
        for (portals, name, expected) in table {
            let nqn = format!("nqn.2024-01.com.example:{name}");
            let namespace = NvmeNamespace::parse(portals, &nqn, Some(&"1".repeat(32)), None).unwrap();
            let expected = expected.map(|portal| portal.parse::<SocketAddr>().unwrap());
            assert_eq!(NvmeRule::denied_portal(&rules, &namespace), expected, "{portals} {name}");
        }
    }

    #[test]
    fn invalid_rules_are_rejected() {
        const NQN: &str = "nqn.2024-01.com.example:a";
        #[rustfmt::skip] // one row a case
        let table = [
            (rule(&[], &[4420], &[NQN]),                        "has no networks"),
            (rule(&["10.0.0.0/8"], &[], &[NQN]),                "has no ports"),
            (rule(&["10.0.0.0/8"], &[4420], &[]),               "has no subsystems"),
            (rule(&["10.0.0.0/8"], &[0], &[NQN]),               "a port is 0"),
            (rule(&["10.0.0.5/8"], &[4420], &[NQN]),            "is neither an IP address nor a network"),
            (rule(&["nas"], &[4420], &[NQN]),                   "is neither an IP address nor a network"),
            (rule(&["10.0.0.0/8"], &[4420], &["*"]),            "the subsystem \"*\" is invalid"),
            (rule(&["10.0.0.0/8"], &[4420], &["nqn.*"]),        "the subsystem \"nqn.*\" is invalid"),
            (rule(&["10.0.0.0/8"], &[4420], &["nqn.2024-01.*"]), "is invalid"),
            (rule(&["10.0.0.0/8"], &[4420], &["nqn.2024-01.com*:a"]), "is invalid"),
            (rule(&["10.0.0.0/8"], &[4420], &["volumes"]),      "is invalid"),
        ];
        for (rule, expected) in table {
            let error = rule.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}: expected {expected}");
        }
    }
}
