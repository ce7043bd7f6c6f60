//! Contract violations in responses of drivers.

use cofferdam_domain::names::RESERVED_ATTRIBUTE_PREFIX;

/// A rule of the driver contract (WIT or CSI) that a driver's response breaks.
///
/// Quoted texts are the driver's, on one line. They have any length and may contain secrets of the call:
/// before the message leaves the host, [`Redactor::printable`](crate::Redactor::printable) redacts and
/// truncates it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContractViolation {
    /// A mandatory field is missing. Only existing CSI drivers can omit one.
    #[error("{object} has no {field}")]
    Missing {
        /// The object without the field.
        object: &'static str,
        /// The field's name.
        field: &'static str,
    },
    /// A text is too short or too long.
    #[error("{field} has {bytes} bytes; expected {min} to {max}")]
    Length {
        /// The field's name.
        field: &'static str,
        /// Length in bytes.
        bytes: usize,
        /// Minimum length in bytes.
        min: usize,
        /// Maximum length in bytes.
        max: usize,
    },
    /// A text has control characters.
    #[error("{field} {text:?} has control characters")]
    ControlCharacters {
        /// The field's name.
        field: &'static str,
        /// The text.
        text: String,
    },
    /// A driver name, a feature, a topology key or a topology value has the wrong syntax.
    #[error("{field} is {text:?}; expected {expected}")]
    Syntax {
        /// The field's name.
        field: &'static str,
        /// The text with the wrong syntax.
        text: String,
        /// The expected syntax.
        expected: &'static str,
    },
    /// A list or map has too few or too many elements.
    #[error("{object} has {count} {elements}; expected {min} to {max}")]
    Count {
        /// The object with the list.
        object: &'static str,
        /// Number of elements.
        count: usize,
        /// Plural noun for the elements, such as `topology keys`.
        elements: &'static str,
        /// Minimum number of elements.
        min: usize,
        /// Maximum number of elements.
        max: usize,
    },
    /// The topology keys or the features of a description have an element twice.
    #[error("{field} {text:?} is given twice")]
    Duplicate {
        /// Noun for the element, such as `the feature`.
        field: &'static str,
        /// The element.
        text: String,
    },
    /// A map of a component has a key twice.
    #[error("{map} has the key {key:?} twice")]
    DuplicateKey {
        /// The map's name.
        map: &'static str,
        /// The key.
        key: String,
    },
    /// All keys and values of a map together are too large.
    #[error("{map} has {bytes} bytes; at most {max} are allowed")]
    MapTooLarge {
        /// The map's name.
        map: &'static str,
        /// Bytes of all keys and values.
        bytes: usize,
        /// Maximum in bytes.
        max: usize,
    },
    /// A key of a map is empty or too long.
    #[error("{map} has a key of {bytes} bytes; expected 1 to {max}")]
    KeyLength {
        /// The map's name.
        map: &'static str,
        /// The key's length in bytes.
        bytes: usize,
        /// Maximum length in bytes.
        max: usize,
    },
    /// A volume context has a key that only the host sets.
    #[error("the context has the key {key:?}; keys under {RESERVED_ATTRIBUTE_PREFIX} are reserved")]
    ReservedKey {
        /// The key.
        key: String,
    },
    /// A key or a value of a component's map contains a secret of the call. Maps are stored in the cluster in
    /// plain text.
    #[error("{map} has a secret of the call under the key {key:?}")]
    SecretInMap {
        /// The map's name.
        map: &'static str,
        /// The key, redacted.
        key: String,
    },
    /// An id of a component contains a secret of the call. Ids are stored in the cluster in plain text, and
    /// logged.
    #[error("{field} contains a secret of the call")]
    SecretInId {
        /// The field's name.
        field: &'static str,
    },
    /// A number is out of range.
    #[error("{field} is {value} {unit}; expected {min} to {max}")]
    OutOfRange {
        /// The field's name.
        field: &'static str,
        /// The number.
        value: i128,
        /// Unit of `value`, `min` and `max`.
        unit: &'static str,
        /// Minimum.
        min: u64,
        /// Maximum.
        max: u64,
    },
    /// A volume that an existing CSI driver has expanded is smaller than required. The resizer checks the
    /// size for every driver.
    #[error("the volume has {bytes} bytes; expected at least {required}")]
    NotExpanded {
        /// The volume's size in bytes.
        bytes: u64,
        /// Required size in bytes.
        required: u64,
    },
    /// The minimum volume size is above the maximum.
    #[error("the minimum volume size is {minimum} bytes; expected at most the maximum, {maximum}")]
    CapacityBounds {
        /// Minimum volume size in bytes.
        minimum: u64,
        /// Maximum volume size in bytes.
        maximum: u64,
    },
    /// A volume handle has the form that kubelet gives to inline volumes.
    #[error("the volume handle {handle} has the form of an inline volume's handle")]
    InlineHandle {
        /// The handle.
        handle: String,
    },
    /// The connection info is invalid or cannot be decoded. The text is the message of that error.
    #[error("{0}")]
    ConnectionInfo(String),
    /// A page's next token is the token that it was requested with: the listing would never end.
    #[error("the page's next token is the token of the request")]
    RepeatedToken,
    /// The response describes another object than the requested one, or a snapshot of another source.
    #[error("the response is about another {object} than {expected}")]
    WrongObject {
        /// Kind of the object; `source` for the source volume of a snapshot.
        object: &'static str,
        /// Id of the object in the request.
        expected: String,
    },
    /// A listing by source volume has a snapshot of another volume.
    #[error("{handle:?} is a snapshot of another volume")]
    ForeignSnapshot {
        /// The snapshot's handle.
        handle: String,
    },
    /// A member of a group snapshot has the handle of another group, or none.
    #[error("the member {handle:?} does not name the group as its group")]
    ForeignMember {
        /// The member's handle.
        handle: String,
    },
    /// A group snapshot is ready before all of its members are.
    #[error("the group is ready and one of its members is not")]
    MemberNotReady,
    /// A group snapshot does not have exactly one member for each requested volume.
    #[error("the group does not have exactly one snapshot of each requested volume")]
    GroupMembers,
}
