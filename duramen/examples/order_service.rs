//! An order service: an order, its index entry and its event commit together. The work of a consumer and its
//! acknowledgement commit together too.
//!
//!     cargo run --release -p duramen --example order_service

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use duramen::encoding::encode;
use duramen::topic::{Group, GroupOptions, Start, Topic, TopicOptions, TopicWrites, Topics};
use duramen::{Error, Result, Store, TypedMap};

/// Why an order is refused.
#[derive(Debug)]
pub enum Refused {
    /// The order is empty.
    Empty,
    /// The store could not accept the order.
    Store(Error),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Empty => f.write_str("an order for nothing"),
            Refused::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Refused {}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused::Store(error)
    }
}

struct Service {
    store: Store,
    /// Order number to customer and cents.
    orders: TypedMap<u64, (String, u64)>,
    by_customer: TypedMap<(String, u64), ()>,
    /// Customer to cents, as counted by the workers.
    totals: TypedMap<String, u64>,
    created: Topic,
}

impl Service {
    fn open(store: &Store) -> Result<Service> {
        let created = Topics::open(store)?.ensure("orders.created", TopicOptions::new())?;
        Ok(Service {
            orders: TypedMap::new(store.map("orders")?),
            by_customer: TypedMap::new(store.map("orders by customer")?),
            totals: TypedMap::new(store.map("totals")?),
            created,
            store: store.clone(),
        })
    }

    /// Accepts an order, and returns its number. There is no outbox: the message exists exactly when the order does.
    fn order(&self, customer: &str, cents: u64) -> Result<u64, Refused> {
        self.store.transact(|tx| {
            if cents == 0 {
                return Err(Refused::Empty);
            }
            // A number is a key of this map. The value follows now that the number is known.
            let number = tx.append_numbered(self.orders.map(), "", "")?;
            self.orders.within(tx).put(&number, &(customer.to_string(), cents))?;
            self.by_customer.within(tx).put(&(customer, number), &())?;
            tx.publish(&self.created, &encode(&number))?;
            Ok(number)
        })
    }

    /// Counts orders until none arrives for a while. A worker that dies in between has counted only what it
    /// acknowledged.
    fn count(&self, group: &Group, name: &str, counted: &AtomicU64) -> Result<()> {
        let mut member = group.member(name);
        while let Some(deliveries) = member.receive(50, Duration::from_millis(200))? {
            self.store.transact(|tx| {
                for message in deliveries.messages().iter() {
                    let number = duramen::encoding::decode::<u64>(message.payload())?;
                    let (customer, cents) = self.orders.at(tx).get(&number)?.expect("it came with the message");
                    let total = |before: Option<u64>| Some(before.unwrap_or_default() + cents);
                    self.totals.within(tx).update(customer.as_str(), total)?;
                }
                tx.acknowledge_all(&deliveries)
            })?;
            counted.fetch_add(deliveries.len() as u64, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Runs the service for a moment, and checks that the numbers agree.
pub fn main() -> Result<(), Refused> {
    let store = Store::temporary()?;
    let service = Service::open(&store)?;
    let group = (service.created).ensure_group("counters", Start::Beginning, GroupOptions::new())?;
    let counted = AtomicU64::new(0);
    thread::scope(|scope| {
        for client in ["ada", "bob", "cleo"] {
            let service = &service;
            scope.spawn(move || {
                for cents in 1..=200 {
                    service.order(client, cents).expect("an order");
                }
            });
        }
        for worker in ["worker 1", "worker 2", "worker 3"] {
            let (service, group, counted) = (&service, &group, &counted);
            scope.spawn(move || service.count(group, worker, counted).expect("all is counted"));
        }
    });
    assert!(matches!(service.order("ada", 0), Err(Refused::Empty)));
    assert_eq!(counted.into_inner(), 600);

    let snapshot = store.snapshot()?;
    for customer in ["ada", "bob", "cleo"] {
        let orders = service.by_customer.at(&snapshot).prefix(&(customer,))?.count();
        let total = service.totals.get(customer)?.unwrap_or_default();
        println!("{customer}: {orders} orders, {total} cents");
        assert_eq!((orders, total), (200, 20_100));
    }
    Ok(())
}
