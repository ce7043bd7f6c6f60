//! A class' parameters: the reserved ones are read here, the others go to the driver (behaviour of
//! external-provisioner).

use cofferdam_domain::{StorageClass, names::RESERVED_PARAMETER_PREFIX, storage::Parameters};

/// Reserved parameters, without their prefix, that name the filesystem type.
const FS_TYPE: &str = "fstype";
/// Reserved parameters, without their prefix, that refer to secrets.
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

/// The secret references from before prefixes; external-provisioner still reads them.
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

/// A class' parameters, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassParameters {
    /// What the driver receives.
    pub for_driver: Parameters,
    /// The filesystem type that the class names.
    pub fs_type: Option<String>,
}

/// Why a class' parameters cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParameterError {
    /// The filesystem type is named twice.
    #[error("StorageClass {class} names the filesystem type more than once ({keys}): expected at most one")]
    DuplicateFsType {
        /// The class.
        class: String,
        /// The keys in question.
        keys: String,
    },
    /// A reserved key that nobody knows.
    #[error(
        "StorageClass {class} has the unknown parameter {key:?}: expected {RESERVED_PARAMETER_PREFIX}fstype, or a key \
         without the prefix {RESERVED_PARAMETER_PREFIX}"
    )]
    Unknown {
        /// The class.
        class: String,
        /// The key.
        key: String,
    },
    /// A reserved key whose function this version does not have.
    #[error(
        "StorageClass {class} refers to a secret with {key:?}: this version passes no secrets to drivers"
    )]
    Secret {
        /// The class.
        class: String,
        /// The key.
        key: String,
    },
}

/// The parameter with which a class names the secret of creations and deletions.
pub fn deletion_secret(class: &StorageClass) -> Option<&str> {
    let is_secret_name = |key: &&String| {
        let reserved = key.strip_prefix(RESERVED_PARAMETER_PREFIX);
        *key == "csiProvisionerSecretName"
            || matches!(reserved, Some("secret-name" | "provisioner-secret-name"))
    };
    class.parameters.keys().find(is_secret_name).map(String::as_str)
}

/// Takes a class' parameters apart.
///
/// # Errors
/// [`ParameterError`] names the class and the key.
pub fn split(class: &StorageClass) -> Result<ClassParameters, ParameterError> {
    let name = || class.name.to_string();
    let mut for_driver = Parameters::new();
    let mut fs_types: Vec<(&str, &str)> = Vec::new();
    for (key, value) in &class.parameters {
        if key.eq_ignore_ascii_case(FS_TYPE) {
            // The form from before prefixes: read here, and the driver sees it too.
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
