//! Secrets that a StorageClass names. Source: external-provisioner's `getSecretReference` and `Delete`.
//!
//! A class names the Secret of each purpose with two parameters, one for the name and one for the namespace.
//! Both are templates. The template of a namespace has fewer tokens than that of a name, because users choose
//! names and annotations of claims, and must not select a Secret of another namespace with them.

use std::collections::BTreeMap;

use cofferdam_cluster::IntentSecrets;
use cofferdam_domain::{
    ClaimKey, StorageClass, Volume, VolumeName,
    dns::{is_dns_label, is_dns_subdomain},
    names::{self, RESERVED_PARAMETER_PREFIX},
    volume::SecretRef,
};

use crate::template::{self, UnknownTokens};

/// The parameters that name the Secret of one purpose.
#[derive(Clone, Copy)]
struct SecretParameters {
    /// The parameters' keys without the reserved prefix and without `-name` and `-namespace`.
    current: &'static str,
    /// The deprecated parameters' keys without `Name` and `Namespace`; `None` if there are none.
    deprecated: Option<&'static str>,
}

impl SecretParameters {
    const fn new(current: &'static str, deprecated: Option<&'static str>) -> Self {
        Self { current, deprecated }
    }

    /// Returns true if the key without the reserved prefix is a current parameter.
    fn has_current_key(&self, reserved: &str) -> bool {
        let suffix = reserved.strip_prefix(self.current);
        suffix.is_some_and(|suffix| matches!(suffix, "-name" | "-namespace"))
    }

    /// Returns the key and the value of the parameter for this part of the reference, `None` if the class has
    /// none.
    ///
    /// # Errors
    /// The class has the current and the deprecated parameter.
    fn find<'a>(
        &self,
        class: &'a StorageClass,
        part: ReferencePart,
    ) -> Result<Option<Template<'a>>, SecretReferenceError> {
        let current = format!("{RESERVED_PARAMETER_PREFIX}{}{}", self.current, part.current_suffix());
        let deprecated = self.deprecated.map(|prefix| format!("{prefix}{}", part.deprecated_suffix()));
        let value_of = |key: &str| {
            let (key, text) = class.parameters.get_key_value(key)?;
            Some(Template { key, text })
        };
        match (value_of(&current), deprecated.as_deref().and_then(value_of)) {
            (Some(current), Some(deprecated)) => Err(SecretReferenceError::BothKeys {
                class: class.name.to_string(),
                current: current.key.to_owned(),
                deprecated: deprecated.key.to_owned(),
            }),
            (current, deprecated) => Ok(current.or(deprecated)),
        }
    }
}

/// The default of every purpose that has no parameters of its own.
const DEFAULT: SecretParameters = SecretParameters::new("secret", None);
/// CreateVolume and DeleteVolume.
const PROVISIONER: SecretParameters =
    SecretParameters::new("provisioner-secret", Some("csiProvisionerSecret"));
const CONTROLLER_PUBLISH: SecretParameters =
    SecretParameters::new("controller-publish-secret", Some("csiControllerPublishSecret"));
const NODE_STAGE: SecretParameters = SecretParameters::new("node-stage-secret", Some("csiNodeStageSecret"));
const NODE_PUBLISH: SecretParameters =
    SecretParameters::new("node-publish-secret", Some("csiNodePublishSecret"));
const CONTROLLER_EXPAND: SecretParameters = SecretParameters::new("controller-expand-secret", None);
const NODE_EXPAND: SecretParameters = SecretParameters::new("node-expand-secret", None);
const CONTROLLER_MODIFY: SecretParameters = SecretParameters::new("controller-modify-secret", None);

const ALL: [SecretParameters; 8] = [
    DEFAULT,
    PROVISIONER,
    CONTROLLER_PUBLISH,
    NODE_STAGE,
    NODE_PUBLISH,
    CONTROLLER_EXPAND,
    NODE_EXPAND,
    CONTROLLER_MODIFY,
];

/// A part of a reference to a Secret.
#[derive(Clone, Copy)]
enum ReferencePart {
    Name,
    Namespace,
}

impl ReferencePart {
    const ALL: [Self; 2] = [Self::Name, Self::Namespace];

    const fn current_suffix(self) -> &'static str {
        match self {
            Self::Name => "-name",
            Self::Namespace => "-namespace",
        }
    }

    const fn deprecated_suffix(self) -> &'static str {
        match self {
            Self::Name => "Name",
            Self::Namespace => "Namespace",
        }
    }

    /// The tokens of the template, for errors.
    const fn tokens(self) -> &'static str {
        match self {
            Self::Name => {
                "${pv.name}, ${pvc.name}, ${pvc.namespace}, or ${pvc.annotations['KEY']} with an annotation \
                 of the claim"
            }
            Self::Namespace => "${pv.name} or ${pvc.namespace}",
        }
    }

    fn is_valid(self, text: &str) -> bool {
        match self {
            Self::Name => is_dns_subdomain(text),
            Self::Namespace => is_dns_label(text),
        }
    }

    const fn description(self) -> &'static str {
        match self {
            Self::Name => "a DNS subdomain, as names of Secrets are",
            Self::Namespace => "a DNS label, as names of namespaces are",
        }
    }
}

/// A parameter of a class.
struct Template<'a> {
    key: &'a str,
    text: &'a str,
}

/// Parameters of a StorageClass that do not name a Secret for a claim.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretReferenceError {
    /// The class has the current and the deprecated parameter of one purpose.
    #[error("StorageClass {class} has {current} and {deprecated}; expected one of the two")]
    BothKeys {
        /// The class.
        class: String,
        /// The current parameter.
        current: String,
        /// The deprecated parameter.
        deprecated: String,
    },
    /// The class has one parameter of a pair.
    #[error("StorageClass {class} names a Secret with {key} alone; expected its name and its namespace")]
    Incomplete {
        /// The class.
        class: String,
        /// The parameter.
        key: String,
    },
    /// A parameter is empty.
    #[error("StorageClass {class} has an empty {key}; expected the name and the namespace of a Secret")]
    Empty {
        /// The class.
        class: String,
        /// The parameter.
        key: String,
    },
    /// A template has tokens without a value.
    #[error("StorageClass {class} has invalid tokens in {key}: {}; expected {expected}", tokens.join(", "))]
    Tokens {
        /// The class.
        class: String,
        /// The parameter.
        key: String,
        /// The tokens, without `${` and `}`.
        tokens: Vec<String>,
        /// The tokens of the parameter.
        expected: &'static str,
    },
    /// A resolved template cannot be the name or the namespace of a Secret.
    #[error("StorageClass {class}: {key} resolves to {resolved:?}; expected {expected}")]
    Resolved {
        /// The class.
        class: String,
        /// The parameter.
        key: String,
        /// The resolved template.
        resolved: String,
        /// The format of the name or the namespace.
        expected: &'static str,
    },
}

/// The values of templates' tokens.
#[derive(Clone, Copy, Debug)]
pub struct TokenValues<'a> {
    /// Name of the PersistentVolume.
    pub volume: &'a VolumeName,
    /// The claim.
    pub claim: &'a ClaimKey,
    /// All annotations of the claim.
    pub annotations: &'a BTreeMap<String, String>,
}

impl TokenValues<'_> {
    fn get(&self, part: ReferencePart, token: &str) -> Option<&str> {
        match (part, token) {
            (_, "pv.name") => Some(self.volume.as_str()),
            (_, "pvc.namespace") => Some(&self.claim.namespace),
            (ReferencePart::Name, "pvc.name") => Some(&self.claim.name),
            (ReferencePart::Name, token) => self.annotations.get(annotation_key(token)?).map(String::as_str),
            (ReferencePart::Namespace, _) => None,
        }
    }
}

/// Returns the annotation of a token such as `pvc.annotations['example.com/team']`.
fn annotation_key(token: &str) -> Option<&str> {
    token.strip_prefix("pvc.annotations['")?.strip_suffix("']")
}

/// Returns true if a reserved parameter, without its prefix, names a Secret.
pub fn is_secret_parameter(reserved: &str) -> bool {
    ALL.iter().any(|parameters| parameters.has_current_key(reserved))
}

/// Returns true if the name of a Secret of the class depends on annotations of the claim.
pub fn uses_annotations(class: &StorageClass) -> bool {
    let mut names = ALL.iter().filter_map(|parameters| parameters.find(class, ReferencePart::Name).ok()?);
    names.any(|name| template::tokens(name.text).any(|token| annotation_key(token).is_some()))
}

/// Resolves the Secrets of all purposes. A purpose without parameters of its own has the class's default
/// Secret, if the class names one.
///
/// # Errors
/// [`SecretReferenceError`] of the first purpose whose parameters are invalid.
pub fn resolve(class: &StorageClass, values: TokenValues<'_>) -> Result<IntentSecrets, SecretReferenceError> {
    Ok(IntentSecrets {
        provisioner: resolve_one(class, PROVISIONER, values)?,
        controller_publish: resolve_one(class, CONTROLLER_PUBLISH, values)?,
        node_stage: resolve_one(class, NODE_STAGE, values)?,
        node_publish: resolve_one(class, NODE_PUBLISH, values)?,
        controller_expand: resolve_one(class, CONTROLLER_EXPAND, values)?,
        node_expand: resolve_one(class, NODE_EXPAND, values)?,
        controller_modify: resolve_one(class, CONTROLLER_MODIFY, values)?,
    })
}

/// Returns the Secret of DeleteVolume, `None` for a call without a Secret. `class` is that of the volume,
/// `None` if it does not exist.
///
/// The two deletion annotations of the PersistentVolume decide if both exist; an empty one means that there
/// is no Secret. Otherwise the class decides, as for CreateVolume, but without annotations of the claim,
/// which is deleted.
///
/// # Errors
/// [`SecretReferenceError`] if the class decides and its parameters are invalid.
pub fn deletion_secret(
    volume: &Volume,
    class: Option<&StorageClass>,
) -> Result<Option<SecretRef>, SecretReferenceError> {
    if let [Some(name), Some(namespace)] = deletion_annotations(volume) {
        let is_complete = !name.is_empty() && !namespace.is_empty();
        return Ok(is_complete.then(|| SecretRef { namespace: namespace.into(), name: name.into() }));
    }
    let (Some(class), Some(claim_ref)) = (class, &volume.claim_ref) else { return Ok(None) };
    let annotations = BTreeMap::new();
    let values = TokenValues { volume: &volume.name, claim: &claim_ref.key, annotations: &annotations };
    resolve_one(class, PROVISIONER, values)
}

/// Returns true if the annotations of the PersistentVolume decide about the Secret of DeleteVolume.
pub fn has_deletion_annotations(volume: &Volume) -> bool {
    deletion_annotations(volume).iter().all(Option::is_some)
}

fn deletion_annotations(volume: &Volume) -> [Option<&str>; 2] {
    [names::DELETION_SECRET_NAME, names::DELETION_SECRET_NAMESPACE]
        .map(|annotation| volume.meta.annotation(annotation))
}

fn resolve_one(
    class: &StorageClass,
    parameters: SecretParameters,
    values: TokenValues<'_>,
) -> Result<Option<SecretRef>, SecretReferenceError> {
    let templates = match find_pair(class, parameters)? {
        Some(templates) => Some(templates),
        None => find_pair(class, DEFAULT)?,
    };
    let Some([name, namespace]) = templates else { return Ok(None) };
    let resolve_part = |template: &Template<'_>, part| resolve_template(class, template, part, values);
    // As in external-provisioner, the error of the namespace comes first.
    let namespace = resolve_part(&namespace, ReferencePart::Namespace)?;
    let name = resolve_part(&name, ReferencePart::Name)?;
    Ok(Some(SecretRef { namespace: namespace.into(), name: name.into() }))
}

/// Returns the templates of name and namespace, `None` if the class has neither.
fn find_pair(
    class: &StorageClass,
    parameters: SecretParameters,
) -> Result<Option<[Template<'_>; 2]>, SecretReferenceError> {
    let [name, namespace] = ReferencePart::ALL.map(|part| parameters.find(class, part));
    let class = || class.name.to_string();
    match (name?, namespace?) {
        (None, None) => Ok(None),
        (Some(alone), None) | (None, Some(alone)) => {
            Err(SecretReferenceError::Incomplete { class: class(), key: alone.key.to_owned() })
        }
        (Some(name), Some(namespace)) => {
            let pair = [name, namespace];
            match pair.iter().find(|template| template.text.is_empty()).map(|empty| empty.key.to_owned()) {
                Some(key) => Err(SecretReferenceError::Empty { class: class(), key }),
                None => Ok(Some(pair)),
            }
        }
    }
}

fn resolve_template(
    class: &StorageClass,
    template: &Template<'_>,
    part: ReferencePart,
    values: TokenValues<'_>,
) -> Result<String, SecretReferenceError> {
    let (class, key) = (class.name.to_string(), template.key.to_owned());
    let resolved = template::expand(template.text, |token| values.get(part, token));
    match resolved {
        Ok(resolved) if part.is_valid(&resolved) => Ok(resolved),
        Ok(resolved) => {
            Err(SecretReferenceError::Resolved { class, key, resolved, expected: part.description() })
        }
        Err(UnknownTokens(tokens)) => {
            let tokens = tokens.into_iter().map(|token| format!("{token:?}")).collect();
            Err(SecretReferenceError::Tokens { class, key, tokens, expected: part.tokens() })
        }
    }
}

#[cfg(test)]
mod tests;
