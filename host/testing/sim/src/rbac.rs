//! RBAC of the simulated processes.

use std::{collections::BTreeSet, fmt, sync::Arc};

use cofferdam_cluster::SecretNamespaces;
use cofferdam_controllers::rbac::{PolicyRule, ResourceAttributes};
use http::{Method, Uri};
use parking_lot::Mutex;

/// The RBAC rules of a process, the rules that it used, and its requests that no rule allows.
#[derive(Debug)]
pub(crate) struct Rbac {
    rules: Vec<PolicyRule>,
    namespace: String,
    secret_namespaces: SecretNamespaces,
    used: Mutex<BTreeSet<String>>,
    denied: Mutex<BTreeSet<String>>,
}

impl Rbac {
    /// The RBAC of a process in `namespace` that reads the Secrets of `secret_namespaces`.
    pub(crate) fn new(
        rules: Vec<PolicyRule>,
        namespace: String,
        secret_namespaces: SecretNamespaces,
    ) -> Arc<Self> {
        Arc::new(Self {
            rules,
            namespace,
            secret_namespaces,
            used: Mutex::default(),
            denied: Mutex::default(),
        })
    }

    /// Requests that no rule allowed, as `verb group/resource namespace/name`.
    pub(crate) fn denied(&self) -> Vec<String> {
        self.denied.lock().iter().cloned().collect()
    }

    /// The used rules, as `verb group/resource`.
    pub(crate) fn used(&self) -> BTreeSet<String> {
        self.used.lock().clone()
    }

    pub(crate) fn is_allowed(&self, method: &Method, uri: &Uri) -> bool {
        let Some(info) = request_info(method, uri) else {
            return true;
        };
        let RequestInfo { verb, group, resource, namespace, name } = &info;
        let request = ResourceAttributes { verb, group, resource, namespace, name };
        if self.rules.iter().any(|rule| rule.allows(&request, &self.namespace, &self.secret_namespaces)) {
            let used = format!("{verb} {group}/{resource}");
            self.used.lock().insert(used);
            return true;
        }
        self.denied.lock().insert(info.to_string());
        false
    }
}

/// The attributes of a request for authorization.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RequestInfo {
    verb: String,
    group: String,
    /// The resource with its subresource and the rest of the path.
    pub(crate) resource: String,
    namespace: String,
    /// Empty in requests to a collection.
    pub(crate) name: String,
}

impl fmt::Display for RequestInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verb, group, resource, namespace, name } = self;
        write!(f, "{verb} {group}/{resource} {namespace}/{name}")
    }
}

/// Returns true for the URI of a watch.
pub(crate) fn is_watch(uri: &Uri) -> bool {
    uri.query().is_some_and(|query| query.contains("watch=true"))
}

/// Parses a request like kube-apiserver's `RequestInfoFactory`. Absent for non-resource requests, such as
/// discovery. An unknown method or resource is returned as it is; no rule allows it.
pub(crate) fn request_info(method: &Method, uri: &Uri) -> Option<RequestInfo> {
    let mut segments = uri.path().strip_prefix('/')?.split('/');
    let group = match segments.next()? {
        "api" => "",
        "apis" => segments.next()?,
        _ => return None,
    };
    let _version = segments.next()?;
    let rest: Vec<&str> = segments.collect();
    let (namespace, rest) = match rest.as_slice() {
        // Resources in a namespace, but not the subresources of the namespace itself.
        ["namespaces", namespace, rest @ ..] if !matches!(rest, [] | ["status" | "finalize"]) => {
            (*namespace, rest)
        }
        rest => ("", rest),
    };
    let (resource, name) = match rest {
        [] => return None,
        [resource] => ((*resource).to_owned(), ""),
        [resource, name] => ((*resource).to_owned(), *name),
        [resource, name, subresource @ ..] => (format!("{resource}/{}", subresource.join("/")), *name),
    };
    let is_watch = is_watch(uri);
    let verb = match *method {
        Method::GET | Method::HEAD if is_watch => "watch".to_owned(),
        Method::GET | Method::HEAD if name.is_empty() => "list".to_owned(),
        Method::GET | Method::HEAD => "get".to_owned(),
        Method::POST => "create".to_owned(),
        Method::PUT => "update".to_owned(),
        Method::PATCH => "patch".to_owned(),
        Method::DELETE if name.is_empty() => "deletecollection".to_owned(),
        Method::DELETE => "delete".to_owned(),
        _ => method.as_str().to_lowercase(),
    };
    let (group, namespace, name) = (group.to_owned(), namespace.to_owned(), name.to_owned());
    Some(RequestInfo { verb, group, resource, namespace, name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_is_checked_against_rbac_rules() {
        let rules = cofferdam_controllers::table::rbac_rules(
            &cofferdam_controllers::Role::ALL.into(),
            cofferdam_controllers::rbac::DriverPlacement::ClusterWide,
        );
        let rbac = Rbac::new(rules, "storage".to_owned(), SecretNamespaces::only("storage"));
        let allowed = |method: &str, path: &'static str| {
            rbac.is_allowed(&method.parse().unwrap(), &Uri::from_static(path))
        };
        assert!(allowed("GET", "/version") && allowed("GET", "/api/v1"));
        assert!(allowed("GET", "/api/v1/namespaces/kube-system"));
        assert!(allowed("PATCH", "/api/v1/persistentvolumes/v/status"));
        assert!(allowed("PATCH", "/api/v1/namespaces/a/persistentvolumeclaims/c/status"));
        assert!(allowed("GET", "/api/v1/namespaces/storage/secrets/s"));
        assert_eq!(rbac.denied(), Vec::<String>::new());
        #[rustfmt::skip] // one row a request
        let table = [
            ("POST",    "/api/v1/namespaces/a/pods/p/eviction",         "create /pods/eviction a/p"),
            ("GET",     "/api/v1/namespaces/a/pods/p/proxy/x",          "get /pods/proxy/x a/p"),
            ("PUT",     "/api/v1/namespaces/a/finalize",                "update /namespaces/finalize /a"),
            ("GET",     "/apis/apps/v1/namespaces/a/deployments/d/scale", "get apps/deployments/scale a/d"),
            ("OPTIONS", "/api/v1/persistentvolumes/v",                  "options /persistentvolumes /v"),
            ("HEAD",    "/api/v1/namespaces/a/secrets",                 "list /secrets a/"),
            ("GET",     "/api/v1/namespaces/a/secrets/s",               "get /secrets a/s"),
        ];
        for (method, path, expected) in table {
            assert!(!allowed(method, path), "{method} {path}");
            assert!(rbac.denied().contains(&expected.to_owned()), "{expected}: {:?}", rbac.denied());
        }
    }
}
