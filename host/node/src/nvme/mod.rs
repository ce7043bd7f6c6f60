//! NVMe over TCP: the fields of kind `nvme-tcp`, the rules of the policy, and decisions about controllers and
//! disks.

mod controllers;
mod host;
mod rule;

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, SocketAddr, SocketAddrV6},
};

pub use controllers::{ControllerState, NvmeController, NvmeDisk};
pub(crate) use controllers::{
    controllers_of, missing_portals, removable_controllers, select_disk, unused_state,
};
pub(crate) use host::DEFAULT_TEMPLATE as DEFAULT_HOST_NQN;
pub use host::NvmeHost;
pub use rule::{NvmeRule, NvmeRuleError};

use crate::network::parse_endpoints;

/// Port of NVMe over TCP that IANA has assigned.
const DEFAULT_PORT: u16 = 4420;
/// Maximum number of portals of a volume.
const MAX_PORTALS: usize = 8;
/// Maximum length of an NVMe qualified name in bytes (NVMe base specification).
const MAX_NQN_BYTES: usize = 223;
/// The name of every discovery controller, which has no namespaces.
const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// An NVMe qualified name: `nqn.`, year and month, a reversed domain, and a text. It has only letters, digits
/// and `.`, `:`, `_`, `-`, because the kernel separates its options with commas.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nqn(String);

impl Nqn {
    /// Parses a name.
    ///
    /// # Errors
    /// [`InvalidNamespace::Nqn`]
    pub fn parse(text: &str) -> Result<Self, InvalidNamespace> {
        if is_nqn(text) && text != DISCOVERY_NQN {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidNamespace::Nqn { nqn: text.to_owned() })
        }
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_nqn_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b':' | b'_' | b'-')
}

/// Checks the start of a name: `nqn.yyyy-mm.` and one more byte.
fn has_nqn_date(text: &str) -> bool {
    let Some(rest) = text.strip_prefix("nqn.") else { return false };
    let is_date = |(index, byte): (usize, u8)| match index {
        4 => byte == b'-',
        7 => byte == b'.',
        _ => byte.is_ascii_digit(),
    };
    rest.len() > 8 && rest.bytes().take(8).enumerate().all(is_date)
}

fn is_nqn(text: &str) -> bool {
    text.len() <= MAX_NQN_BYTES && has_nqn_date(text) && text.bytes().all(is_nqn_byte)
}

/// The identifier of a namespace, which no other namespace has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceId {
    /// Namespace Globally Unique Identifier.
    Nguid([u8; 16]),
    /// Namespace UUID.
    Uuid([u8; 16]),
}

impl NamespaceId {
    /// Returns the 128 bits. The kernel shows the NGUID in the place of a missing UUID, so the same bits are
    /// the same namespace.
    pub const fn bytes(self) -> [u8; 16] {
        match self {
            Self::Nguid(bytes) | Self::Uuid(bytes) => bytes,
        }
    }

    /// Returns the field of connection info that has this identifier, and its only spelling.
    pub fn field(self) -> (&'static str, String) {
        match self {
            Self::Nguid(bytes) => ("nguid", hex(&bytes)),
            Self::Uuid(bytes) => ("uuid", uuid_text(bytes)),
        }
    }
}

impl fmt::Display for NamespaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (field, value) = self.field();
        write!(f, "{field} {value}")
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Formats 128 bits as a UUID.
pub(crate) fn uuid_text(bytes: [u8; 16]) -> String {
    let digits: Vec<char> = hex(&bytes).chars().collect();
    let lengths = [8, 4, 4, 4, 12];
    let mut rest = digits.as_slice();
    let mut groups = Vec::new();
    for length in lengths {
        let (group, after) = rest.split_at(length.min(rest.len()));
        groups.push(group.iter().collect::<String>());
        rest = after;
    }
    groups.join("-")
}

/// Parses 32 hexadecimal digits; `None` for other texts and for zero.
fn parse_hex(digits: &str) -> Option<[u8; 16]> {
    let is_valid = digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = is_valid.then(|| u128::from_str_radix(digits, 16).ok()).flatten()?;
    (number != 0).then(|| number.to_be_bytes())
}

/// Parses a UUID with hyphens; `None` for other texts and for zero.
pub(crate) fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let groups: Vec<usize> = text.split('-').map(str::len).collect();
    if groups == [8, 4, 4, 4, 12] { parse_hex(&text.replace('-', "")) } else { None }
}

/// An invalid field of kind `nvme-tcp`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidNamespace {
    /// The portals are invalid.
    #[error(
        "the portals are {portals:?}: expected 1 to {MAX_PORTALS} different addresses such as 10.0.0.5:4420 \
         or [fd00::5]:4420, separated by commas"
    )]
    Portals {
        /// The value.
        portals: String,
    },
    /// The name of the subsystem is invalid.
    #[error(
        "the NVMe qualified name is {nqn:?}: expected one such as nqn.2024-01.com.example:volumes, of \
         letters, digits and .:_-, and at most {MAX_NQN_BYTES} bytes"
    )]
    Nqn {
        /// The value.
        nqn: String,
    },
    /// The identifier is invalid.
    #[error("the namespace's nguid is {nguid:?}: expected 32 hexadecimal digits that are not all zero")]
    Nguid {
        /// The value.
        nguid: String,
    },
    /// The identifier is invalid.
    #[error("the namespace's uuid is {uuid:?}: expected a UUID that is not zero")]
    Uuid {
        /// The value.
        uuid: String,
    },
    /// The fields have no identifier, or two.
    #[error("connection info nvme-tcp has {count} of the fields \"nguid\" and \"uuid\": expected one")]
    Identifiers {
        /// Number of identifiers.
        count: usize,
    },
}

/// A namespace of an NVMe subsystem, and the portals that lead to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmeNamespace {
    /// The subsystem's name.
    pub nqn: Nqn,
    /// The portals, at least one. IPv4 in IPv6 notation has become IPv4.
    pub portals: Vec<SocketAddr>,
    /// The namespace's identifier.
    pub id: NamespaceId,
}

impl NvmeNamespace {
    /// Parses the fields.
    ///
    /// # Errors
    /// [`InvalidNamespace`]
    pub fn parse(
        portals: &str,
        nqn: &str,
        nguid: Option<&str>,
        uuid: Option<&str>,
    ) -> Result<Self, InvalidNamespace> {
        let id = match (nguid, uuid) {
            (Some(nguid), None) => NamespaceId::Nguid(
                parse_hex(nguid).ok_or_else(|| InvalidNamespace::Nguid { nguid: nguid.to_owned() })?,
            ),
            (None, Some(uuid)) => NamespaceId::Uuid(
                parse_uuid(uuid).ok_or_else(|| InvalidNamespace::Uuid { uuid: uuid.to_owned() })?,
            ),
            (None, None) => return Err(InvalidNamespace::Identifiers { count: 0 }),
            (Some(_), Some(_)) => return Err(InvalidNamespace::Identifiers { count: 2 }),
        };
        let portals = parse_endpoints(portals, DEFAULT_PORT, MAX_PORTALS)
            .ok_or_else(|| InvalidNamespace::Portals { portals: portals.to_owned() })?;
        Ok(Self { nqn: Nqn::parse(nqn)?, portals, id })
    }

    /// Returns the fields in their only spelling.
    pub fn fields(&self) -> BTreeMap<String, String> {
        let portals: Vec<String> = self.portals.iter().map(ToString::to_string).collect();
        let (id_field, id) = self.id.field();
        [("portals", portals.join(",")), ("nqn", self.nqn.to_string()), (id_field, id)]
            .map(|(field, value)| (field.to_owned(), value))
            .into()
    }
}

impl fmt::Display for NvmeNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the namespace with {} of the NVMe subsystem {}", self.id, self.nqn)
    }
}

/// Parses the address of a controller as sysfs shows it, such as
/// `traddr=10.0.0.5,trsvcid=4420,src_addr=10.0.0.9`; `None` if it has no IP address and port. A zone of an
/// IPv6 address is another address.
pub(crate) fn parse_controller_address(text: &str) -> Option<SocketAddr> {
    let value =
        |key: &str| text.trim().split(',').find_map(|option| option.strip_prefix(key)?.strip_prefix('='));
    let (address, port): (IpAddr, u16) = (value("traddr")?.parse().ok()?, value("trsvcid")?.parse().ok()?);
    Some(match address.to_canonical() {
        IpAddr::V4(_) => SocketAddr::new(address.to_canonical(), port),
        IpAddr::V6(address) => SocketAddr::V6(SocketAddrV6::new(address, port, 0, 0)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NQN: &str = "nqn.2024-01.com.example:volumes";
    const UUID: &str = "0f6d1e52-3f3c-4e0a-9d0e-3f5f2f1b7a10";

    fn portals(text: &str) -> Result<String, InvalidNamespace> {
        let namespace = NvmeNamespace::parse(text, NQN, None, Some(UUID))?;
        Ok(namespace.fields().remove("portals").unwrap())
    }

    #[test]
    fn a_portal_has_one_spelling() {
        #[rustfmt::skip] // one row a case
        let table = [
            ("10.0.0.5:4420",            "10.0.0.5:4420"),
            ("10.0.0.5",                 "10.0.0.5:4420"),
            ("[2001:DB8:0::5]:8009",     "[2001:db8::5]:8009"),
            ("[2001:db8::5]",            "[2001:db8::5]:4420"),
            ("[::ffff:10.0.0.5]:4420",   "10.0.0.5:4420"),
            ("[::ffff:10.0.0.5]",        "10.0.0.5:4420"),
            ("10.0.0.5,10.0.0.6:4421",   "10.0.0.5:4420,10.0.0.6:4421"),
        ];
        for (text, expected) in table {
            assert_eq!(portals(text).as_deref(), Ok(expected), "{text}");
        }
        let nine = (1..=9).map(|host| format!("10.0.0.{host}")).collect::<Vec<_>>().join(",");
        for bad in [
            "",
            " 10.0.0.5",
            "10.0.0.5,",
            "10.0.0.5:0",
            "10.0.0.5:70000",
            "010.0.0.5",
            "2001:db8::5",
            "[fe80::1%2]:4420",
            "[fe80::1%0]:4420",
            "[fe80::1%eth0]",
            "[10.0.0.5]",
            "nas:4420",
            "10.0.0.5:4420,hostnqn=x",
            "10.0.0.5,[::ffff:10.0.0.5]:4420",
            &nine,
        ] {
            assert!(matches!(portals(bad), Err(InvalidNamespace::Portals { .. })), "{bad:?}");
        }
    }

    #[test]
    fn a_qualified_name_is_no_option_string() {
        let longest = format!("nqn.2024-01.{}", "a".repeat(MAX_NQN_BYTES - 12));
        for good in [NQN, "nqn.2014-08.org.nvmexpress:uuid:0f6d1e52-3f3c-4e0a-9d0e-3f5f2f1b7a10", &longest] {
            assert_eq!(Nqn::parse(good).unwrap().as_str(), good);
        }
        for bad in [
            "",
            "nqn.2024-01.",
            "nqn.2024-1.com.example:a",
            "nqn.24-01.com.example:a",
            "NQN.2024-01.com.example:a",
            "iqn.2024-01.com.example:a",
            "nqn.2024-01.com.example:a,hostnqn=b",
            "nqn.2024-01.com.example:a b",
            "nqn.2024-01.com.example:a\n",
            "nqn.2024-01.com.example:\u{e4}",
            "nqn.2024-01.com.example:a=b",
            DISCOVERY_NQN,
            &format!("{longest}a"),
        ] {
            assert!(Nqn::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_namespace_has_one_identifier() {
        fn parse(nguid: Option<&str>, uuid: Option<&str>) -> Result<String, InvalidNamespace> {
            NvmeNamespace::parse("10.0.0.5", NQN, nguid, uuid).map(|namespace| namespace.id.to_string())
        }
        let digits = "0F6D1E523F3C4E0A9D0E3F5F2F1B7A10";
        assert_eq!(parse(Some(digits), None).unwrap(), "nguid 0f6d1e523f3c4e0a9d0e3f5f2f1b7a10");
        assert_eq!(parse(None, Some(&UUID.to_uppercase())).unwrap(), format!("uuid {UUID}"));
        assert_eq!(parse(None, None), Err(InvalidNamespace::Identifiers { count: 0 }));
        assert_eq!(parse(Some(digits), Some(UUID)), Err(InvalidNamespace::Identifiers { count: 2 }));
        for bad in ["", UUID, "0", &"0".repeat(32), &"g".repeat(32), &format!("+{}", "1".repeat(31))] {
            assert!(matches!(parse(Some(bad), None), Err(InvalidNamespace::Nguid { .. })), "{bad:?}");
        }
        let nil = "00000000-0000-0000-0000-000000000000";
        for bad in ["", digits, nil, "0f6d1e523-f3c-4e0a-9d0e-3f5f2f1b7a10", &UUID[1..]] {
            assert!(matches!(parse(None, Some(bad)), Err(InvalidNamespace::Uuid { .. })), "{bad:?}");
        }
    }

    #[test]
    fn addresses_of_controllers_are_compared_by_their_value() {
        #[rustfmt::skip] // one row a case
        let table = [
            ("traddr=10.0.0.5,trsvcid=4420,src_addr=10.0.0.9\n", Some("10.0.0.5:4420")),
            ("traddr=10.0.0.5,trsvcid=4420,host_traddr=10.0.0.9,host_iface=eth0", Some("10.0.0.5:4420")),
            ("traddr=2001:DB8:0:0::5,trsvcid=4420",              Some("[2001:db8::5]:4420")),
            ("traddr=::ffff:10.0.0.5,trsvcid=4420",              Some("10.0.0.5:4420")),
            ("traddr=fe80::1%eth0,trsvcid=4420",                 None),
            ("src_addr=10.0.0.9,trsvcid=4420",                   None),
            ("traddr=10.0.0.5",                                  None),
            ("0000:01:00.0",                                     None),
            ("",                                                 None),
        ];
        for (text, expected) in table {
            let expected = expected.map(|portal| portal.parse::<SocketAddr>().unwrap());
            assert_eq!(parse_controller_address(text), expected, "{text:?}");
        }
    }
}
