//! StorageClass parameters. Source: external-provisioner, except that parameters of Secrets are rejected.
//!
//! Cofferdam evaluates the filesystem type. It rejects parameters that name a Secret, and unknown ones with
//! the reserved prefix. The driver gets all others, also the deprecated `fstype`.

use cofferdam_domain::{StorageClass, names::RESERVED_PARAMETER_PREFIX, storage::Parameters};

/// Reserved parameter of the filesystem type, without its prefix. The deprecated parameter has this name
/// without the prefix, in any combination of upper and lower case.
const FS_TYPE: &str = "fstype";
/// Reserved parameters of secrets, without their prefix.
const SECRETS: [&str; 16] = [
    "secret-name",
    "secret-namespace",
    "provisioner-secret-name",
    "provisioner-secret-namespace",
    "controller-publish-secret-name",
    "controller-publish-secret-namespace",
    "node-stage-secret-name",
    "node-stage-secret-namespace",
    "node-publish-secret-name",
    "node-publish-secret-namespace",
    "controller-expand-secret-name",
    "controller-expand-secret-namespace",
    "node-expand-secret-name",
    "node-expand-secret-namespace",
    "controller-modify-secret-name",
    "controller-modify-secret-namespace",
];

/// Deprecated parameters of secrets. external-provisioner still reads them.
const OLD_SECRETS: [&str; 8] = [
    "csiProvisionerSecretName",
    "csiProvisionerSecretNamespace",
    "csiControllerPublishSecretName",
    "csiControllerPublishSecretNamespace",
    "csiNodeStageSecretName",
    "csiNodeStageSecretNamespace",
    "csiNodePublishSecretName",
    "csiNodePublishSecretNamespace",
];

/// Parameters of a StorageClass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassParameters {
    /// Parameters for the driver.
    pub for_driver: Parameters,
    /// The filesystem type of the class. `None` if no parameter sets it, or if its value is empty.
    pub fs_type: Option<String>,
}

/// Invalid parameters of a StorageClass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParameterError {
    /// Several parameters set the filesystem type.
    #[error("StorageClass {class} has several filesystem types ({keys}); expected at most one")]
    DuplicateFsType {
        /// The class.
        class: String,
        /// The parameters of the filesystem type.
        keys: String,
    },
    /// A parameter with the reserved prefix is unknown.
    #[error(
        "StorageClass {class} has the unknown parameter {key:?}; \
         expected {RESERVED_PARAMETER_PREFIX}fstype, or a key without the prefix {RESERVED_PARAMETER_PREFIX}"
    )]
    Unknown {
        /// The class.
        class: String,
        /// The parameter.
        key: String,
    },
    /// A parameter names a Secret, which is not supported.
    #[error("StorageClass {class} refers to a secret with {key:?}; secrets of classes are not supported")]
    Secret {
        /// The class.
        class: String,
        /// The parameter.
        key: String,
    },
}

/// Returns the key of the parameter with which a class names the Secret of `CreateVolume` and `DeleteVolume`,
/// or `None` if the class names none.
pub fn deletion_secret(class: &StorageClass) -> Option<&str> {
    let is_secret_name = |key: &&String| {
        let reserved = key.strip_prefix(RESERVED_PARAMETER_PREFIX);
        *key == "csiProvisionerSecretName"
            || matches!(reserved, Some("secret-name" | "provisioner-secret-name"))
    };
    class.parameters.keys().find(is_secret_name).map(String::as_str)
}

/// Splits the parameters of a class into those for the driver and the filesystem type.
///
/// # Errors
/// [`ParameterError`] if a parameter is invalid.
pub fn split(class: &StorageClass) -> Result<ClassParameters, ParameterError> {
    let name = || class.name.to_string();
    let mut for_driver = Parameters::new();
    let mut fs_types: Vec<(&str, &str)> = Vec::new();
    for (key, value) in &class.parameters {
        if key.eq_ignore_ascii_case(FS_TYPE) {
            // The deprecated parameter: it is evaluated, and sent to the driver.
            fs_types.push((key, value));
            for_driver.insert(key.clone(), value.clone());
            continue;
        }
        if OLD_SECRETS.contains(&key.as_str()) {
            return Err(ParameterError::Secret { class: name(), key: key.clone() });
        }
        match key.strip_prefix(RESERVED_PARAMETER_PREFIX) {
            None => {
                for_driver.insert(key.clone(), value.clone());
            }
            Some(FS_TYPE) => fs_types.push((key, value)),
            Some(reserved) if SECRETS.contains(&reserved) => {
                return Err(ParameterError::Secret { class: name(), key: key.clone() });
            }
            Some(_) => return Err(ParameterError::Unknown { class: name(), key: key.clone() }),
        }
    }
    match fs_types.as_slice() {
        [] => Ok(ClassParameters { for_driver, fs_type: None }),
        [(_, value)] => {
            Ok(ClassParameters { for_driver, fs_type: Some((*value).to_owned()).filter(|v| !v.is_empty()) })
        }
        several => {
            let keys: Vec<&str> = several.iter().map(|(key, _)| *key).collect();
            Err(ParameterError::DuplicateFsType { class: name(), keys: keys.join(", ") })
        }
    }
}

#[cfg(test)]
mod tests;
