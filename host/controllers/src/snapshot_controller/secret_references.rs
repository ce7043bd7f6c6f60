//! The Secret that a VolumeSnapshotClass names, and the parameters that are not for the driver. Source:
//! external-snapshotter's `GetSecretReference` and `RemovePrefixedParameters`.

use cofferdam_domain::{
    VolumeSnapshotClass, VolumeSnapshotContentName, VolumeSnapshotKey,
    dns::{is_dns_label, is_dns_subdomain},
    names::RESERVED_PARAMETER_PREFIX,
    storage::Parameters,
    volume::SecretRef,
};

use crate::template::{self, UnknownTokens};

/// Parameters of a class with the reserved prefix, without it.
const SECRET_NAME: &str = "snapshotter-secret-name";
const SECRET_NAMESPACE: &str = "snapshotter-secret-namespace";
const RESERVED: [&str; 4] =
    [SECRET_NAME, SECRET_NAMESPACE, "snapshotter-list-secret-name", "snapshotter-list-secret-namespace"];

/// The reason why the parameters of a VolumeSnapshotClass cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotParameterError {
    /// One of the two parameters of a Secret is missing or empty.
    #[error(
        "VolumeSnapshotClass {class} has only one of {RESERVED_PARAMETER_PREFIX}{SECRET_NAME} and \
         {RESERVED_PARAMETER_PREFIX}{SECRET_NAMESPACE}; expected both or neither, and not empty"
    )]
    Incomplete {
        /// Name of the class.
        class: String,
    },
    /// A template has tokens without a value.
    #[error("VolumeSnapshotClass {class} has invalid tokens in {key}: {}; expected {expected}", .tokens.join(", "))]
    Tokens {
        /// Name of the class.
        class: String,
        /// Key of the parameter.
        key: String,
        /// The tokens.
        tokens: Vec<String>,
        /// The tokens that have a value.
        expected: &'static str,
    },
    /// A template expands to no valid name.
    #[error("VolumeSnapshotClass {class} has {key} {value:?}; expected {expected}")]
    Value {
        /// Name of the class.
        class: String,
        /// Key of the parameter.
        key: String,
        /// The expanded value.
        value: String,
        /// The values that are valid.
        expected: &'static str,
    },
    /// A parameter has the reserved prefix and is unknown.
    #[error(
        "VolumeSnapshotClass {class} has the parameter {key}; expected none with the prefix {RESERVED_PARAMETER_PREFIX} but those of Secrets"
    )]
    Unknown {
        /// Name of the class.
        class: String,
        /// Key of the parameter.
        key: String,
    },
}

/// Returns the Secret of CreateSnapshot and DeleteSnapshot. `None` if the class names none.
///
/// # Errors
/// [`SnapshotParameterError`]
pub fn snapshot_secret(
    class: &VolumeSnapshotClass,
    snapshot: &VolumeSnapshotKey,
    content: &VolumeSnapshotContentName,
) -> Result<Option<SecretRef>, SnapshotParameterError> {
    let parameter = |suffix: &str| {
        let key = format!("{RESERVED_PARAMETER_PREFIX}{suffix}");
        class.parameters.get(&key).map(|value| (key, value.as_str()))
    };
    let (name, namespace) = match (parameter(SECRET_NAME), parameter(SECRET_NAMESPACE)) {
        (None, None) => return Ok(None),
        (Some(name), Some(namespace)) if !name.1.is_empty() && !namespace.1.is_empty() => (name, namespace),
        _ => return Err(SnapshotParameterError::Incomplete { class: class.name.to_string() }),
    };
    // A user must not select a Secret of another namespace with the name of a VolumeSnapshot.
    let found_namespace = expand(class, &namespace, false, snapshot, content)?;
    let found_name = expand(class, &name, true, snapshot, content)?;
    let invalid = |key: String, value: String, expected| SnapshotParameterError::Value {
        class: class.name.to_string(),
        key,
        value,
        expected,
    };
    if !is_dns_label(&found_namespace) {
        return Err(invalid(namespace.0, found_namespace, "a DNS label, as names of namespaces are"));
    }
    if !is_dns_subdomain(&found_name) {
        return Err(invalid(name.0, found_name, "a DNS subdomain, as names of Secrets are"));
    }
    Ok(Some(SecretRef { namespace: found_namespace.into(), name: found_name.into() }))
}

/// Expands the template of a parameter, given by key and text. `is_name` allows the name of the VolumeSnapshot.
fn expand(
    class: &VolumeSnapshotClass,
    (key, template): &(String, &str),
    is_name: bool,
    snapshot: &VolumeSnapshotKey,
    content: &VolumeSnapshotContentName,
) -> Result<String, SnapshotParameterError> {
    let value_of = |token: &str| match token {
        "volumesnapshotcontent.name" => Some(content.as_str()),
        "volumesnapshot.namespace" => Some(&*snapshot.namespace),
        "volumesnapshot.name" if is_name => Some(&*snapshot.name),
        _ => None,
    };
    template::expand(template, value_of).map_err(|UnknownTokens(tokens)| SnapshotParameterError::Tokens {
        class: class.name.to_string(),
        key: key.clone(),
        tokens: tokens.into_iter().map(|token| format!("{token:?}")).collect(),
        expected: match is_name {
            true => "${volumesnapshotcontent.name}, ${volumesnapshot.namespace} or ${volumesnapshot.name}",
            false => "${volumesnapshotcontent.name} or ${volumesnapshot.namespace}",
        },
    })
}

/// Returns the parameters of a class that are for the driver.
///
/// # Errors
/// [`SnapshotParameterError::Unknown`]
pub fn driver_parameters(class: &VolumeSnapshotClass) -> Result<Parameters, SnapshotParameterError> {
    let mut parameters = Parameters::new();
    for (key, value) in &class.parameters {
        match key.strip_prefix(RESERVED_PARAMETER_PREFIX) {
            None => {
                parameters.insert(key.clone(), value.clone());
            }
            Some(reserved) if RESERVED.contains(&reserved) => {}
            Some(_) => {
                let class = class.name.to_string();
                return Err(SnapshotParameterError::Unknown { class, key: key.clone() });
            }
        }
    }
    Ok(parameters)
}
