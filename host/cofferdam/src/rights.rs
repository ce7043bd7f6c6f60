//! The rights of the process's account in the cluster, as the API server reports them in
//! SelfSubjectAccessReviews.

use std::{collections::BTreeSet, fmt};

use clap::ValueEnum as _;
use cofferdam_cluster::SecretNamespaces;
use cofferdam_controllers::rbac::{PolicyRule, RuleScope};
use cofferdam_domain::{
    dns::{is_dns_label, is_dns_subdomain},
    text::escape_control_and_format,
};
use futures::{StreamExt as _, stream};
use k8s_openapi::api::{
    authentication::v1::SelfSubjectReview,
    authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
};
use kube::{Api, api::PostParams};

use crate::{cli::DriverPlacementArg, client::one_line, config::Roles};

/// Number of reviews in flight.
const MAX_IN_FLIGHT: usize = 8;
/// Prefix of the user names of service accounts.
const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";

/// The namespaces to which rules refer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuleNamespaces<'a> {
    /// Namespace of the journal, the restore marker and the orphan reports.
    pub(crate) process: &'a str,
    /// Namespace of the Leases; `None` without leader election.
    pub(crate) leases: Option<&'a str>,
    /// Namespaces of drivers' Secrets; `None` if no role reads Secrets or their rights are not checked.
    pub(crate) secrets: Option<&'a SecretNamespaces>,
}

/// Describes the rights that the rules allow and the API server denies to this account, with the command that
/// prints the rules. Returns `None` if no right is missing.
pub(crate) async fn missing_rights_message(
    client: &kube::Client,
    roles: &Roles,
    rules: &[PolicyRule],
    drivers: DriverPlacementArg,
    namespaces: RuleNamespaces<'_>,
) -> Option<String> {
    let reviews = AccessReviews::request(client, rules, namespaces).await;
    if let Some(message) = reviews.failure_message() {
        tracing::debug!("{message}");
    }
    if reviews.denied.is_empty() {
        return None;
    }
    let user = user_name(client).await;
    let account = user.as_deref().and_then(ServiceAccount::from_user_name);
    let command = RbacCommand { roles, drivers, namespaces, account: account.as_ref() };
    let remark = match (&account, user) {
        (None, None) => String::new(),
        (None, Some(user)) => {
            format!(" for a service account; the account is {}", escape_control_and_format(&user))
        }
        (Some(account), _) if account.namespace == namespaces.process => format!(" of {account}"),
        (Some(account), _) => {
            format!(" of {account}; change the namespace of their subjects to {}", account.namespace)
        }
    };
    let missing = reviews.denied.join(", ");
    Some(format!("the account lacks rights: {missing}; `{command}` prints the rules{remark}"))
}

/// The results of access reviews. A right is a verb and a resource, such as `patch persistentvolumes`; rights
/// are in the order of the rules.
#[derive(Debug, Default)]
struct AccessReviews {
    /// Rights that the API server denies to this account.
    denied: Vec<String>,
    /// Rights whose review failed.
    failed: Vec<String>,
    /// The error of the first failed review.
    first_error: Option<kube::Error>,
}

impl AccessReviews {
    /// Requests a review of each right that the rules allow.
    async fn request(client: &kube::Client, rules: &[PolicyRule], namespaces: RuleNamespaces<'_>) -> Self {
        let rules = rules.iter().flat_map(|rule| {
            namespaces_of(rule, namespaces).into_iter().map(move |namespace| (rule, namespace))
        });
        let requests =
            rules.flat_map(|(rule, namespace)| rule.verbs.iter().map(move |verb| (rule, namespace, *verb)));
        let mut responses = stream::iter(requests)
            .map(|(rule, namespace, verb)| async move {
                (describe(rule, namespace, verb), review(client, attributes(rule, namespace, verb)).await)
            })
            .buffered(MAX_IN_FLIGHT);
        let mut reviews = Self::default();
        while let Some((right, response)) = responses.next().await {
            match response {
                Ok(true) => {}
                Ok(false) => reviews.denied.push(right),
                Err(error) => {
                    reviews.failed.push(right);
                    reviews.first_error.get_or_insert(error);
                }
            }
        }
        reviews
    }

    /// Describes the failed reviews in one line; `None` if none failed.
    fn failure_message(&self) -> Option<String> {
        let error = one_line(self.first_error.as_ref()?);
        let (count, rights) = (self.failed.len(), self.failed.join(", "));
        Some(format!("{count} access reviews failed: {rights}; the first with: {error}"))
    }
}

/// The user name of the process, as the API server authenticates it. `None` if the API has no such review.
async fn user_name(client: &kube::Client) -> Option<String> {
    let review = SelfSubjectReview::default();
    match Api::all(client.clone()).create(&PostParams::default(), &review).await {
        Ok(SelfSubjectReview { status, .. }) => status?.user_info?.username,
        Err(error) => {
            tracing::debug!(error = one_line(&error), "the review of the user name failed");
            None
        }
    }
}

/// A service account.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ServiceAccount {
    namespace: String,
    name: String,
}

impl ServiceAccount {
    /// The service account of a user name. `None` for other users.
    fn from_user_name(user: &str) -> Option<Self> {
        let (namespace, name) = user.strip_prefix(SERVICE_ACCOUNT_PREFIX)?.split_once(':')?;
        let is_valid = is_dns_label(namespace) && is_dns_subdomain(name);
        is_valid.then(|| Self { namespace: namespace.to_owned(), name: name.to_owned() })
    }
}

impl fmt::Display for ServiceAccount {
    /// Formats as the user name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SERVICE_ACCOUNT_PREFIX}{}:{}", self.namespace, self.name)
    }
}

/// The command that prints the rules of a process. Its flags for Secrets and Leases are absent where their
/// defaults apply.
struct RbacCommand<'a> {
    /// All roles of the process: the rules of one command replace those of another.
    roles: &'a Roles,
    drivers: DriverPlacementArg,
    namespaces: RuleNamespaces<'a>,
    /// The account of the process, which exists.
    account: Option<&'a ServiceAccount>,
}

impl fmt::Display for RbacCommand<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RuleNamespaces { process, leases, secrets } = self.namespaces;
        f.write_str("cofferdam render rbac")?;
        for role in self.roles.iter() {
            write!(f, " --role {role}")?;
        }
        write!(f, " --namespace {process}")?;
        if let Some(account) = self.account {
            write!(f, " --service-account {} --without-service-account", account.name)?;
        }
        if let Some(leases) = leases.filter(|leases| *leases != process) {
            write!(f, " --leader-election-namespace {leases}")?;
        }
        match secrets {
            Some(secrets) if *secrets == SecretNamespaces::Listed(BTreeSet::new()) => {
                f.write_str(" --secret-namespaces ''")?;
            }
            Some(secrets) if *secrets != SecretNamespaces::only(process) => {
                write!(f, " --secret-namespaces '{secrets}'")?;
            }
            Some(_) | None => {}
        }
        match self.drivers.to_possible_value() {
            Some(drivers) if self.drivers != DriverPlacementArg::default() => {
                write!(f, " --drivers {}", drivers.get_name())
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// The namespaces of the rule's requests. An empty one stands for the whole cluster.
fn namespaces_of<'a>(rule: &PolicyRule, namespaces: RuleNamespaces<'a>) -> Vec<&'a str> {
    match rule.scope {
        RuleScope::Cluster => vec![""],
        RuleScope::OwnNamespace if rule.is_for_leases() => namespaces.leases.into_iter().collect(),
        RuleScope::OwnNamespace => vec![namespaces.process],
        RuleScope::DriverSecrets => match namespaces.secrets {
            None => Vec::new(),
            Some(SecretNamespaces::All) => vec![""],
            Some(SecretNamespaces::Listed(listed)) => listed.iter().map(String::as_str).collect(),
        },
    }
}

fn describe(rule: &PolicyRule, namespace: &str, verb: &str) -> String {
    let name = rule.name.map(|name| format!(" {name}")).unwrap_or_default();
    let place = if namespace.is_empty() { String::new() } else { format!(" in namespace {namespace}") };
    format!("{verb} {}{name}{place}", rule.resource)
}

fn attributes(rule: &PolicyRule, namespace: &str, verb: &str) -> ResourceAttributes {
    let (resource, subresource) = match rule.resource.split_once('/') {
        Some((resource, subresource)) => (resource, Some(subresource.to_owned())),
        None => (rule.resource, None),
    };
    ResourceAttributes {
        verb: Some(verb.to_owned()),
        group: Some(rule.group.to_owned()),
        version: Some("v1".to_owned()),
        resource: Some(resource.to_owned()),
        subresource,
        name: rule.name.map(str::to_owned),
        namespace: (!namespace.is_empty()).then(|| namespace.to_owned()),
        ..Default::default()
    }
}

/// Reports if the account may send a request. A review avoids a denied request, which would be in the
/// cluster's audit log. An API without access reviews, as in dev, permits everything; if the review fails,
/// the request itself shows if it is permitted.
pub(crate) async fn is_allowed(client: &kube::Client, attributes: ResourceAttributes) -> bool {
    review(client, attributes).await.unwrap_or_else(|error| {
        tracing::debug!(error = one_line(&error), "an access review failed");
        true
    })
}

/// Requests an access review: whether the account may send a request.
async fn review(client: &kube::Client, attributes: ResourceAttributes) -> Result<bool, kube::Error> {
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
    let review = SelfSubjectAccessReview { spec, ..Default::default() };
    let response = Api::all(client.clone()).create(&PostParams::default(), &review).await?;
    Ok(response.status.is_some_and(|status| status.allowed))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use cofferdam_controllers::{
        Role,
        rbac::{DriverPlacement, NodeTopologySource},
        table,
    };
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        cli::{
            Cli, Command,
            DriverPlacementArg::{Central, CsiNode, Node, NodeLabels},
        },
        commands::render::render,
    };

    const NAMESPACES: RuleNamespaces<'static> =
        RuleNamespaces { process: "storage", leases: None, secrets: None };

    fn roles(names: &[&str]) -> Roles {
        let mut roles = Roles::default();
        names.iter().for_each(|name| roles.insert(name).unwrap());
        roles
    }

    /// The command of a provisioner in the namespace `storage`.
    fn command(namespaces: RuleNamespaces<'_>) -> String {
        RbacCommand { roles: &roles(&["provisioner"]), drivers: Central, namespaces, account: None }
            .to_string()
    }

    #[test]
    fn the_command_grants_the_secrets_that_are_read() {
        let listed =
            |names: &[&str]| SecretNamespaces::Listed(names.iter().map(|n| (*n).to_owned()).collect());
        #[rustfmt::skip] // one row a case
        let cases = [
            (None, ""),
            (Some(SecretNamespaces::All), " --secret-namespaces '*'"),
            (Some(listed(&["a", "b"])), " --secret-namespaces 'a,b'"),
            (Some(listed(&["storage"])), ""),
            (Some(listed(&[])), " --secret-namespaces ''"),
        ];
        for (secrets, flag) in cases {
            let found = command(RuleNamespaces { secrets: secrets.as_ref(), ..NAMESPACES });
            assert_eq!(found, format!("cofferdam render rbac --role provisioner --namespace storage{flag}"));
        }
    }

    #[test]
    fn the_command_names_the_namespace_of_the_leases() {
        for (leases, flag) in [
            (None, ""),
            (Some("storage"), ""),
            (Some("kube-system"), " --leader-election-namespace kube-system"),
        ] {
            let found = command(RuleNamespaces { leases, ..NAMESPACES });
            assert_eq!(found, format!("cofferdam render rbac --role provisioner --namespace storage{flag}"));
        }
    }

    #[test]
    fn a_service_account_is_recognized_by_its_user_name() {
        let found = |user: &str| {
            ServiceAccount::from_user_name(user).map(|account| (account.namespace, account.name))
        };
        assert_eq!(
            found("system:serviceaccount:storage:csi.array"),
            Some(("storage".to_owned(), "csi.array".to_owned()))
        );
        for user in ["jane", "system:node:n1", "system:serviceaccount:storage", "system:serviceaccount:a:b c"]
        {
            assert_eq!(found(user), None, "{user}");
        }
    }

    #[test]
    fn the_command_runs_as_printed_for_account_drivers_and_roles() {
        let account = ServiceAccount { namespace: "storage".to_owned(), name: "array".to_owned() };
        let listed = SecretNamespaces::Listed(["a".to_owned(), "b".to_owned()].into());
        let none = SecretNamespaces::Listed(BTreeSet::new());
        #[rustfmt::skip] // one row a case
        let cases: [(&[&str], DriverPlacementArg, Option<&SecretNamespaces>, &str); 6] = [
            (&["provisioner"],         Central,    Some(&listed), " --secret-namespaces 'a,b'"),
            (&["provisioner"],         Central,    Some(&none),   " --secret-namespaces ''"),
            (&["attacher", "resizer"], Central,    Some(&SecretNamespaces::All), " --secret-namespaces '*'"),
            (&["provisioner"],         Node,       None, " --drivers node"),
            (&["provisioner"],         CsiNode,    None, " --drivers csi-node"),
            (&["provisioner", "node", "csi-server"], NodeLabels, None, " --drivers node-labels"),
        ];
        for (names, drivers, secrets, flags) in cases {
            let namespaces = RuleNamespaces { secrets, leases: Some("kube-system"), ..NAMESPACES };
            let roles = roles(names);
            let command = RbacCommand { roles: &roles, drivers, namespaces, account: Some(&account) };
            let text = command.to_string();
            for name in names {
                assert!(text.contains(&format!(" --role {name}")), "{text}");
            }
            assert!(text.contains(" --service-account array --without-service-account"), "{text}");
            assert!(text.ends_with(flags), "{text}");
            let arguments = text.split(' ').map(|word| word.trim_matches('\''));
            let Command::Render(parsed) = Cli::try_parse_from(arguments).unwrap().command else {
                panic!("{text}");
            };
            let manifest = render(&parsed).unwrap();
            assert!(manifest.contains("name: storage:array") && !manifest.contains("v1\nkind: ServiceA"));
        }
    }

    #[test]
    fn the_placement_of_drivers_is_a_value_of_the_flag() {
        for (placement, expected) in [
            (DriverPlacement::ClusterWide, Central),
            (DriverPlacement::NodeLocal(NodeTopologySource::Name), Node),
            (DriverPlacement::NodeLocal(NodeTopologySource::Labels), NodeLabels),
            (DriverPlacement::NodeLocal(NodeTopologySource::CsiNode), CsiNode),
        ] {
            assert_eq!(DriverPlacementArg::from(placement), expected);
            assert_eq!(DriverPlacement::from(expected), placement);
        }
    }

    /// A client of an API that responds to a request with the JSON and the code that `respond` returns for
    /// the path and the body.
    fn client(respond: impl Fn(&str, Value) -> (u16, Value) + Clone + Send + 'static) -> kube::Client {
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let respond = respond.clone();
            async move {
                let path = request.uri().path().to_owned();
                let body = request.into_body().collect_bytes().await?;
                let (code, response) = respond(&path, serde_json::from_slice(&body)?);
                let response = http::Response::builder()
                    .status(code)
                    .body(Body::from(response.to_string().into_bytes()));
                Ok::<_, tower::BoxError>(response?)
            }
        });
        kube::Client::new(service, "default")
    }

    /// The response of an API to a SelfSubjectReview.
    fn review_of(user: &str) -> Value {
        json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "metadata": {},
            "status": {"userInfo": {"username": user}},
        })
    }

    /// The response of an API without the path.
    fn not_found() -> Value {
        json!({
            "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure", "code": 404,
            "reason": "NotFound", "message": "the server could not find the requested resource",
        })
    }

    #[tokio::test]
    async fn the_message_names_the_account_and_the_command() {
        let roles = roles(&["protection"]);
        let rules = table::rbac_rules(&roles.cluster, DriverPlacement::ClusterWide);
        let rules: Vec<_> = rules.into_iter().filter(|rule| rule.resource == "persistentvolumes").collect();
        let existing = " --service-account array --without-service-account";
        #[rustfmt::skip] // one row a case
        let cases = [
            (Some("system:serviceaccount:storage:array"), existing, " of system:serviceaccount:storage:array"),
            (Some("system:serviceaccount:other:array"), existing,
             " of system:serviceaccount:other:array; change the namespace of their subjects to other"),
            (Some("jane\n"), "", " for a service account; the account is jane\\u{a}"),
            (None, "", ""),
        ];
        for (user, flags, end) in cases {
            let client = client(move |path, _| match path {
                "/apis/authentication.k8s.io/v1/selfsubjectreviews" => {
                    user.map_or_else(|| (404, not_found()), |user| (201, review_of(user)))
                }
                _ => {
                    let spec = json!({});
                    let status = json!({"allowed": false});
                    (201, json!({"metadata": {}, "spec": spec, "status": status}))
                }
            });
            let message = missing_rights_message(&client, &roles, &rules, Central, NAMESPACES).await.unwrap();
            assert!(message.starts_with("the account lacks rights: "), "{message}");
            assert!(message.contains(" persistentvolumes"), "{message}");
            let command = format!("cofferdam render rbac --role protection --namespace storage{flags}");
            assert!(message.ends_with(&format!("; `{command}` prints the rules{end}")), "{message}");
        }
    }

    #[tokio::test]
    async fn failed_reviews_are_reported_by_number_and_right() {
        let rules = table::rbac_rules(&[Role::ALL[0]].into(), DriverPlacement::ClusterWide);
        let rules: Vec<_> = rules.into_iter().filter(|rule| rule.resource == "persistentvolumes").collect();
        let client = client(|_, review| match review["spec"]["resourceAttributes"]["verb"].as_str() {
            Some("get" | "list") => (404, not_found()),
            _ => (201, json!({"metadata": {}, "spec": {}, "status": {"allowed": true}})),
        });
        let reviews = AccessReviews::request(&client, &rules, NAMESPACES).await;
        assert_eq!(reviews.denied, [""; 0], "the request itself shows if it is permitted");
        assert_eq!(
            reviews.failure_message().unwrap(),
            "2 access reviews failed: get persistentvolumes, list persistentvolumes; the first with: the server \
             could not find the requested resource: NotFound"
        );
    }

    #[test]
    fn rights_for_secrets_are_checked_where_they_are_granted() {
        let rules = table::rbac_rules(&Role::ALL.into(), DriverPlacement::ClusterWide);
        let rule = rules.iter().find(|rule| rule.resource == "secrets").unwrap();
        let checked = |secrets: Option<&SecretNamespaces>| {
            let namespaces = RuleNamespaces { process: "storage", leases: None, secrets };
            namespaces_of(rule, namespaces).into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        let listed = SecretNamespaces::Listed(["a".to_owned(), "b".to_owned()].into());
        assert_eq!(checked(Some(&SecretNamespaces::All)), [""]);
        assert_eq!(checked(Some(&listed)), ["a", "b"]);
        assert_eq!(checked(None), [""; 0]);
        assert_eq!(describe(rule, "a", "get"), "get secrets in namespace a");
    }
}
