//! The proxy as a whole, in this process: bootstrap errors, the admin interface, configuration over xDS, and the data path.

mod admin;
mod balance;
mod bootstrap;
mod breaker;
mod buffering;
mod data_path;
mod detection;
mod dns;
mod exchanges;
mod floods;
mod harness;
mod health;
mod holds;
mod keep_alive;
mod lifecycle;
mod listener_updates;
mod overload;
mod protocols;
mod proxy_protocol;
mod rollouts;
mod settling;
mod sidecars;
mod streams;
mod tcp;
mod upgrade;
mod xds;
