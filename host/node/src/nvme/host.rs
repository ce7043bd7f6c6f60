//! The name by which a node identifies itself to NVMe subsystems.

use cofferdam_domain::names;

use super::{InvalidNamespace, Nqn, parse_uuid, uuid_text};

/// The default of [`NodePolicy::nvme_host_nqn`](crate::NodePolicy::nvme_host_nqn).
pub(crate) const DEFAULT_TEMPLATE: &str = "nqn.2026-11.dev.cofferdam:{node}";
/// Part of a template that stands for the name of the Node.
const NODE_PLACEHOLDER: &str = "{node}";
/// Prefix of qualified names that have a UUID (NVMe base specification).
const UUID_PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";

/// The host NQN and host identifier of a node. Subsystems decide by the NQN which namespaces the node sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmeHost {
    /// The NQN.
    pub nqn: Nqn,
    /// The identifier, a UUID.
    pub id: String,
}

impl NvmeHost {
    /// Creates the names of a node. `{node}` in the template stands for the name of the Node. The identifier
    /// is the UUID in the NQN if it has one; otherwise it is derived from the NQN. The kernel accepts only
    /// one identifier for an NQN.
    ///
    /// # Errors
    /// [`InvalidNamespace::Nqn`] if the result is no NQN, for example because it is too long.
    pub fn new(template: &str, node: &str) -> Result<Self, InvalidNamespace> {
        let nqn = Nqn::parse(&template.replace(NODE_PLACEHOLDER, node))?;
        let uuid = nqn.as_str().strip_prefix(UUID_PREFIX).and_then(parse_uuid);
        let id = uuid_text(uuid.unwrap_or_else(|| derived_uuid(nqn.as_str())));
        Ok(Self { nqn, id })
    }
}

/// Derives a UUID of version 8 (RFC 9562) from the SHA-256 of a text.
fn derived_uuid(text: &str) -> [u8; 16] {
    let digest = format!("{:.32}", names::sha256_hex([text]));
    let number = u128::from_str_radix(&digest, 16).unwrap_or_default();
    let cleared = number & !(0xf << 76) & !(0b11 << 62);
    (cleared | (8 << 76) | (0b10 << 62)).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_nqn_follows_from_the_name_of_the_node() {
        let host = NvmeHost::new(DEFAULT_TEMPLATE, "node-1.example.com").unwrap();
        assert_eq!(host.nqn.as_str(), "nqn.2026-11.dev.cofferdam:node-1.example.com");
        assert!(parse_uuid(&host.id).is_some() && &host.id[14..15] == "8", "{}", host.id);
        assert!(matches!(&host.id[19..20], "8" | "9" | "a" | "b"), "{}", host.id);
        assert_eq!(NvmeHost::new(DEFAULT_TEMPLATE, "node-1.example.com").unwrap(), host);
        assert_ne!(NvmeHost::new(DEFAULT_TEMPLATE, "node-2").unwrap().id, host.id);
        let uuid = "0f6d1e52-3f3c-4e0a-9d0e-3f5f2f1b7a10";
        assert_eq!(NvmeHost::new(&format!("{UUID_PREFIX}{uuid}"), "n").unwrap().id, uuid);
        for (template, node) in [("{node}", "n"), (DEFAULT_TEMPLATE, "a b"), ("nqn.2026-11.a:{name}", "n")] {
            assert!(NvmeHost::new(template, node).is_err(), "{template} {node}");
        }
        assert!(NvmeHost::new(DEFAULT_TEMPLATE, &"a".repeat(253)).is_err());
    }
}
