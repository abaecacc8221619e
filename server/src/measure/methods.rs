//! The methods that a server knows, from the descriptors of its services.

use duramen_proto::DESCRIPTORS;
use prost::Message;
use prost_types::FileDescriptorSet;

/// Stands for every method that is not in the list: clients choose paths, and must not be able to add series.
const OTHER: &str = "other";

/// A method of a service.
#[derive(Debug)]
pub(crate) struct Method {
    /// The full name of the service, as in `duramen.v1.Maps`.
    pub(crate) service: String,
    /// The name of the method, as in `Put`.
    pub(crate) name: String,
    /// Whether it takes or gives a stream. Such a call may last as long as its client likes.
    pub(crate) is_streaming: bool,
    path: String,
}

impl Method {
    fn new(service: &str, name: &str, is_streaming: bool) -> Method {
        Method {
            service: service.into(),
            name: name.into(),
            is_streaming,
            path: format!("/{service}/{name}"),
        }
    }
}

/// All methods. The last one stands for those that are not known.
#[derive(Debug)]
pub(crate) struct Methods(Vec<Method>);

impl Methods {
    /// The methods of the services of Duramen, and those of the health service.
    pub(crate) fn of_server() -> Methods {
        let files = FileDescriptorSet::decode(DESCRIPTORS).expect("the descriptors were made with the services");
        let mut methods = Vec::new();
        for file in &files.file {
            for service in &file.service {
                let full_name = format!("{}.{}", file.package(), service.name());
                for method in &service.method {
                    let is_streaming = method.client_streaming() || method.server_streaming();
                    methods.push(Method::new(&full_name, method.name(), is_streaming));
                }
            }
        }
        methods.push(Method::new("grpc.health.v1.Health", "Check", false));
        methods.push(Method::new("grpc.health.v1.Health", "Watch", true));
        // What it is cannot be known, so it is never a slow call.
        methods.push(Method::new(OTHER, OTHER, true));
        Methods(methods)
    }

    /// The number of the method of a path. Comparing texts begins with their lengths, so most methods cost one comparison of
    /// two integers.
    pub(crate) fn position(&self, path: &str) -> usize {
        let (_, known) = self.0.split_last().expect("the last method is always there");
        let found = known.iter().position(|method| method.path == path);
        found.unwrap_or(known.len())
    }

    /// The method of a number that [`Methods::position`] gave.
    pub(crate) fn get(&self, position: usize) -> &Method {
        &self.0[position]
    }

    /// All methods, by number.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &Method> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_to_their_methods_and_unknown_paths_to_other() {
        let methods = Methods::of_server();
        let at = |path: &str| methods.get(methods.position(path));
        let put = at("/duramen.v1.Maps/Put");
        assert_eq!(
            (put.service.as_str(), put.name.as_str(), put.is_streaming),
            ("duramen.v1.Maps", "Put", false)
        );
        assert!(at("/duramen.v1.Topics/Subscribe").is_streaming);
        assert!(at("/duramen.v1.Topics/PublishStream").is_streaming);
        assert_eq!(at("/grpc.health.v1.Health/Check").name, "Check");
        assert_eq!(at("/duramen.v1.Maps/Pus").name, OTHER);
        assert_eq!(at("").name, OTHER);
    }
}
