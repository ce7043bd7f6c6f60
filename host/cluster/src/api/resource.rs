//! API resources and the paths of their collections.

use form_urlencoded::Serializer;

/// The API resource of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ApiResource {
    /// API group, empty for the core group.
    pub group: &'static str,
    /// Version, such as `v1`.
    pub version: &'static str,
    /// Kind, such as `PersistentVolume`.
    pub kind: &'static str,
    /// Name in paths, such as `persistentvolumes`.
    pub plural: &'static str,
    /// True if objects have a namespace.
    pub namespaced: bool,
}

impl ApiResource {
    /// `group/version`, or the version alone for the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// Path of the collection: in one namespace, or for `None` in all namespaces. A cluster-scoped kind
    /// ignores `namespace`.
    pub fn collection_path(&self, namespace: Option<&str>) -> String {
        let root = if self.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", self.group) };
        match namespace {
            Some(namespace) if self.namespaced => {
                format!("{root}/{}/namespaces/{namespace}/{}", self.version, self.plural)
            }
            _ => format!("{root}/{}/{}", self.version, self.plural),
        }
    }
}

/// Selects the objects of a list or watch.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// The namespace; `None` for all namespaces.
    pub namespace: Option<String>,
    /// `fieldSelector`; `None` for no restriction.
    pub field_selector: Option<String>,
    /// `labelSelector`; `None` for no restriction.
    pub label_selector: Option<String>,
}

impl Scope {
    /// Path and query of a list or watch of the resource.
    pub(crate) fn path<'q>(
        &self,
        resource: ApiResource,
        query: impl IntoIterator<Item = (&'q str, &'q str)>,
    ) -> String {
        let mut serializer = Serializer::new(String::new());
        serializer.extend_pairs(query);
        serializer.extend_pairs(self.field_selector.iter().map(|fields| ("fieldSelector", fields)));
        serializer.extend_pairs(self.label_selector.iter().map(|labels| ("labelSelector", labels)));
        format!("{}?{}", resource.collection_path(self.namespace.as_deref()), serializer.finish())
    }
}
