//! StorageClass parameters. Source: external-provisioner.
//!
//! Cofferdam evaluates the filesystem type and the [Secrets](super::secret_references), and rejects unknown
//! parameters with the reserved prefix. The driver gets all parameters without the prefix, also the
//! deprecated `fstype` and the deprecated parameters of Secrets.

use cofferdam_domain::{StorageClass, names::RESERVED_PARAMETER_PREFIX, storage::Parameters};

use super::secret_references;

/// Reserved parameter of the filesystem type, without its prefix. The deprecated parameter has this name
/// without the prefix, in any combination of upper and lower case.
const FS_TYPE: &str = "fstype";

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
        "StorageClass {class} has the unknown parameter {key:?}; expected {RESERVED_PARAMETER_PREFIX}fstype, \
         a key of a Secret such as {RESERVED_PARAMETER_PREFIX}provisioner-secret-name, or a key without the \
         prefix {RESERVED_PARAMETER_PREFIX}"
    )]
    Unknown {
        /// The class.
        class: String,
        /// The parameter.
        key: String,
    },
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
        match key.strip_prefix(RESERVED_PARAMETER_PREFIX) {
            None => {
                for_driver.insert(key.clone(), value.clone());
            }
            Some(FS_TYPE) => fs_types.push((key, value)),
            Some(reserved) if secret_references::is_secret_parameter(reserved) => {}
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
