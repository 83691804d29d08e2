//! Addresses to which the kernel refuses connections of children in profile `standard`, and ports that they
//! may not have.
//!
//! Small BPF programs on the cgroup of the children check each TCP connection, and each `bind`. Landlock
//! cannot do this: it knows ports without addresses, and only as an allow-list. Not here: Landlock's ports
//! (`domain`).

use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    ops::Range,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use ipnet::IpNet;

use crate::backend::linux::syscalls;

/// Addresses and ports that children may not connect to.
#[derive(Debug, Default)]
pub(crate) struct Unreachable {
    /// Ports of the gateway and its stores, at the addresses of this machine. Nor may children have them: at
    /// another address, or while the gateway or a store is restarted, they would get what clients send to it.
    pub(crate) ports: Vec<u16>,
    /// Ports of other replicas, at every address.
    pub(crate) everywhere: Vec<u16>,
    /// Stores, on this or other machines.
    pub(crate) stores: Vec<SocketAddr>,
    /// Networks that the operator names.
    pub(crate) networks: Vec<IpNet>,
    /// Addresses of this machine, besides loopback; found when they are refused.
    pub(crate) local: Vec<IpAddr>,
}

impl Unreachable {
    /// Finds the present addresses of this machine.
    fn find_local(&mut self) {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let v4 = local_v4(&read("/proc/net/fib_trie"));
        let v6 = local_v6(&read("/proc/net/if_inet6"));
        self.local = v4.into_iter().chain(v6).collect();
    }

    fn program_v4(&self) -> Vec<u64> {
        let mut program = self.begin();
        program.push(load(IP, ADDRESS_V4));
        program.extend(self.check_v4());
        program.extend(allow());
        program
    }

    fn program_v6(&self) -> Vec<u64> {
        let mut program = self.begin();
        program.extend((0..4).map(|word| load(WORDS + word, ADDRESS_V6 + 4 * i16::from(word))));
        // ::ffff:a.b.c.d connects by IPv4 without its hook.
        let mut mapped = vec![copy(IP, WORDS + 3)];
        mapped.extend(self.check_v4());
        mapped.extend(allow());
        let prefix = [0, 0, u32::from_be(0xffff)];
        program.extend(if_words(&prefix, mapped));
        let mut link_local = vec![copy(SCRATCH, WORDS), mask(SCRATCH, 0xffc0_0000_u32)];
        link_local.extend(unless_dns(SCRATCH, 0xfe80_0000));
        program.extend(link_local);
        program.extend(if_words(&words(METADATA_V6), deny()));
        for store in &self.stores {
            if let IpAddr::V6(address) = store.ip() {
                program.extend(on_port(store.port(), if_words(&words(address), deny())));
            }
        }
        for network in &self.networks {
            if let IpNet::V6(network) = network {
                let (first, bits) = (words(network.network()), network.netmask());
                program.extend(if_network(first, bits, deny()));
            }
        }
        let local = self.local.iter().filter_map(|address| match address {
            IpAddr::V6(address) => Some(*address),
            IpAddr::V4(_) => None,
        });
        let own = [Ipv6Addr::LOCALHOST, Ipv6Addr::UNSPECIFIED];
        let check: Vec<u64> = own
            .into_iter()
            .chain(local)
            .flat_map(|address| if_words(&words(address), deny()))
            .collect();
        program.extend(self.on_ports(&check));
        program.extend(allow());
        program
    }

    /// Denies the ports that children may not have, at any address.
    fn program_bind(&self) -> Vec<u64> {
        let mut program = self.begin();
        program.extend(self.on_ports(&deny()));
        program.extend(allow());
        program
    }

    /// Denies the IPv4 address in `IP` if it is refused; else continues after the check.
    fn check_v4(&self) -> Vec<u64> {
        let mut check = vec![copy(SCRATCH, IP), mask(SCRATCH, 0xffff_0000)];
        check.extend(unless_dns(SCRATCH, 0xa9fe_0000));
        for store in &self.stores {
            if let IpAddr::V4(address) = store.ip() {
                let address = u32::from_ne_bytes(address.octets());
                check.extend(on_port(store.port(), if_equal(IP, address, deny())));
            }
        }
        for network in &self.networks {
            if let IpNet::V4(network) = network {
                let first = u32::from_ne_bytes(network.network().octets());
                check.extend([copy(SCRATCH, IP), mask(SCRATCH, network.netmask().into())]);
                check.extend(if_equal(SCRATCH, first, deny()));
            }
        }
        let mut local = vec![copy(SCRATCH, IP), mask(SCRATCH, 0xff00_0000)];
        local.extend(if_equal(SCRATCH, u32::from_be(0x7f00_0000), deny()));
        local.extend(if_equal(IP, 0, deny()));
        for address in &self.local {
            if let IpAddr::V4(address) = address {
                let address = u32::from_ne_bytes(address.octets());
                local.extend(if_equal(IP, address, deny()));
            }
        }
        check.extend(self.on_ports(&local));
        check
    }

    /// Runs `check` for each of the ports.
    fn on_ports(&self, check: &[u64]) -> Vec<u64> {
        let ports = self.ports.iter();
        ports
            .flat_map(|&port| on_port(port, check.to_vec()))
            .collect()
    }

    /// Allows all but TCP, loads the port, and denies those of replicas.
    fn begin(&self) -> Vec<u64> {
        let mut program = vec![load(SCRATCH, PROTOCOL), step(0x16, SCRATCH, 0, 2, TCP)];
        program.extend(allow());
        program.push(load(PORT, PORT_AT));
        let everywhere = self.everywhere.iter();
        program.extend(everywhere.flat_map(|&port| on_port(port, deny())));
        program
    }
}

/// Addresses that are refused to all present and future processes in a cgroup and below it.
#[derive(Debug)]
pub(crate) struct Filter {
    unreachable: Unreachable,
    group: fs::File,
    /// The attached programs with their hooks.
    programs: Vec<(OwnedFd, u32)>,
}

impl Filter {
    /// Refuses these addresses, and those of this machine, to `group`.
    pub(super) fn attach(unreachable: Unreachable, group: &Path) -> io::Result<Self> {
        let mut filter = Self {
            unreachable,
            group: fs::File::open(group)?,
            programs: Vec::new(),
        };
        filter.renew()?;
        Ok(filter)
    }

    /// Refuses these addresses of stores from now on, in place of those before.
    ///
    /// # Errors
    ///
    /// Those of the kernel; what was refused before still is.
    pub(crate) fn set_stores(&mut self, stores: Vec<SocketAddr>) -> io::Result<()> {
        self.unreachable.stores = stores;
        self.renew()
    }

    /// Attaches the programs of the present addresses, and then detaches those before: at no moment
    /// is anything reached.
    fn renew(&mut self) -> io::Result<()> {
        self.unreachable.find_local();
        let before = self.programs.len();
        match self.attach_present() {
            Ok(()) => self.detach(0..before),
            Err(error) => {
                // Of one that is left on a hook the kernel takes few more.
                _ = self.detach(before..self.programs.len());
                Err(error)
            }
        }
    }

    /// Attaches the programs of the present addresses; after an error those that it came to are attached.
    fn attach_present(&mut self) -> io::Result<()> {
        for (program, hook) in [
            (self.unreachable.program_v4(), CONNECT_V4),
            (self.unreachable.program_v6(), CONNECT_V6),
            (self.unreachable.program_bind(), BIND_V4),
            (self.unreachable.program_bind(), BIND_V6),
        ] {
            let program = syscalls::load_filter(&program, hook)?;
            syscalls::attach_filter(self.group.as_fd(), program.as_fd(), hook)?;
            self.programs.push((program, hook));
        }
        Ok(())
    }

    /// Detaches some of the programs; one that the kernel keeps is tried again with the next.
    fn detach(&mut self, range: Range<usize>) -> io::Result<()> {
        let mut detached = Ok(());
        let programs: Vec<_> = self.programs.drain(range).collect();
        for (program, hook) in programs {
            let done = syscalls::detach_filter(self.group.as_fd(), program.as_fd(), hook);
            if let Err(error) = done {
                self.programs.push((program, hook));
                detached = Err(error);
            }
        }
        detached
    }
}

/// Whether this process may load programs that filter connections.
pub(super) fn is_offered() -> bool {
    let accepts = accepts_on(&[1]);
    syscalls::load_filter(&allow(), CONNECT_V4).is_ok()
        && syscalls::load_filter(&accepts, syscalls::BPF_CGROUP_INET_INGRESS).is_ok()
}

/// Accepts TCP connections to these ports only, in `group`. Landlock has a rule for `bind`, and a socket
/// that listens without it gets a port of the kernel's choice.
pub(super) fn accept_on(ports: &[u16], group: &Path) -> io::Result<()> {
    let hook = syscalls::BPF_CGROUP_INET_INGRESS;
    let program = syscalls::load_filter(&accepts_on(ports), hook)?;
    // It stays attached for as long as the group is there.
    syscalls::attach_filter(fs::File::open(group)?.as_fd(), program.as_fd(), hook)
}

/// Drops what arrives at a listening TCP socket with another port: so no connection begins.
fn accepts_on(ports: &[u16]) -> Vec<u64> {
    let skip = 2;
    // The socket that the packet is for, if it is a whole one; `0x55` jumps if 64 bits differ.
    let mut program = vec![step(0x79, 1, 1, SOCKET, 0), step(0x55, 1, 0, skip, 0)];
    program.extend(allow());
    program.push(step(0x85, 0, 0, 0, SK_FULLSOCK));
    program.push(step(0x55, 0, 0, skip, 0));
    program.extend(allow());
    for (at, value) in [(STATE, LISTEN), (SOCKET_PROTOCOL, TCP)] {
        program.push(step(0x61, SCRATCH, 0, at, 0));
        program.push(step(0x16, SCRATCH, 0, skip, value));
        program.extend(allow());
    }
    program.push(step(0x61, PORT, 0, SOURCE_PORT, 0));
    for (at, port) in ports.iter().enumerate() {
        // Past the ports after it and the denial.
        let past = i16::try_from(ports.len() - at - 1).unwrap_or(i16::MAX - 2) + skip;
        program.push(step(0x16, PORT, 0, past, u32::from(*port)));
    }
    program.extend(deny());
    // The kernel takes no instruction that is never reached.
    if !ports.is_empty() {
        program.extend(allow());
    }
    program
}

/// Runs `then` for a port.
fn on_port(port: u16, then: Vec<u64>) -> Vec<u64> {
    if_equal(PORT, u32::from(port.to_be()), then)
}

/// Denies all ports but that of DNS if `register` has this value in network order: cloud machines
/// often have a resolver at a link-local address.
fn unless_dns(register: u8, value: u32) -> Vec<u64> {
    let mut inner = vec![step(0x16, PORT, 0, 2, u32::from(53_u16.to_be()))];
    inner.extend(deny());
    if_equal(register, u32::from_be(value), inner)
}

/// Runs `then` if the IPv6 address begins with these words.
fn if_words(words: &[u32], then: Vec<u64>) -> Vec<u64> {
    let mut inner = then;
    for (at, word) in [0, 1, 2, 3].into_iter().zip(words).rev() {
        inner = if_equal(WORDS + at, *word, inner);
    }
    inner
}

/// Runs `then` if the IPv6 address is in the network with these first words.
fn if_network(first: [u32; 4], bits: Ipv6Addr, then: Vec<u64>) -> Vec<u64> {
    let bits = words(bits).map(u32::from_be);
    let mut inner = then;
    for ((at, word), bits) in (0..4).zip(first).zip(bits).rev() {
        let mut test = vec![copy(SCRATCH, WORDS + at), mask(SCRATCH, bits)];
        test.extend(if_equal(SCRATCH, word, inner));
        inner = test;
    }
    inner
}

/// Runs `then` if a register has this value.
fn if_equal(register: u8, value: u32, then: Vec<u64>) -> Vec<u64> {
    let length = i16::try_from(then.len()).unwrap_or(i16::MAX);
    let mut program = vec![step(0x56, register, 0, length, value)];
    program.extend(then);
    program
}

fn words(address: Ipv6Addr) -> [u32; 4] {
    let octets = address.octets();
    std::array::from_fn(|at| u32::from_ne_bytes(std::array::from_fn(|byte| octets[4 * at + byte])))
}

fn deny() -> Vec<u64> {
    vec![step(0xb7, 0, 0, 0, 0), step(0x95, 0, 0, 0, 0)]
}

fn allow() -> Vec<u64> {
    vec![step(0xb7, 0, 0, 0, 1), step(0x95, 0, 0, 0, 0)]
}

/// Loads a word of the connection, or of the address to bind (`struct bpf_sock_addr`), to which register 1 points.
fn load(register: u8, offset: i16) -> u64 {
    step(0x61, register, 1, offset, 0)
}

fn copy(to: u8, from: u8) -> u64 {
    step(0xbf, to, from, 0, 0)
}

/// Masks a register with bits in network order.
fn mask(register: u8, bits: u32) -> u64 {
    // The 32-bit `and`: an immediate would be extended by its sign.
    step(0x54, register, 0, 0, u32::from_be(bits))
}

/// One instruction (`struct bpf_insn`): `0x16` and `0x56` jump if 32 bits are equal or not.
fn step(code: u8, to: u8, from: u8, offset: i16, value: u32) -> u64 {
    let [low, high] = offset.to_ne_bytes();
    let [a, b, c, d] = value.to_ne_bytes();
    let registers = if cfg!(target_endian = "little") {
        to | from << 4
    } else {
        to << 4 | from
    };
    u64::from_ne_bytes([code, registers, low, high, a, b, c, d])
}

/// Addresses of this machine in `/proc/net/fib_trie`: a line with one, then `/32 host LOCAL`.
fn local_v4(trie: &str) -> Vec<IpAddr> {
    let lines: Vec<&str> = trie.lines().map(str::trim).collect();
    let mut found: Vec<IpAddr> = lines
        .windows(2)
        .filter(|pair| pair[1].ends_with("host LOCAL"))
        .filter_map(|pair| pair[0].strip_prefix("|-- ")?.parse::<Ipv4Addr>().ok())
        .filter(|address| !address.is_loopback())
        .map(IpAddr::V4)
        .collect();
    found.sort();
    found.dedup();
    found.truncate(MOST_LOCAL);
    found
}

/// Addresses of this machine in `/proc/net/if_inet6`: 32 hexadecimal digits, then more.
fn local_v6(table: &str) -> Vec<IpAddr> {
    table
        .lines()
        .filter_map(|line| u128::from_str_radix(line.get(..32)?, 16).ok())
        .map(|bits| IpAddr::V6(Ipv6Addr::from(bits)))
        .filter(|address| !address.is_loopback())
        .take(MOST_LOCAL)
        .collect()
}

/// `BPF_CGROUP_INET4_BIND`, `BPF_CGROUP_INET6_BIND`.
const BIND_V4: u32 = 8;
const BIND_V6: u32 = 9;
/// `BPF_CGROUP_INET4_CONNECT`, `BPF_CGROUP_INET6_CONNECT`.
const CONNECT_V4: u32 = 10;
const CONNECT_V6: u32 = 11;

/// Offsets in `struct bpf_sock_addr`; addresses and port are in network order.
const ADDRESS_V4: i16 = 4;
const ADDRESS_V6: i16 = 8;
const PORT_AT: i16 = 24;
const PROTOCOL: i16 = 36;

/// Offsets in `struct __sk_buff` and in `struct bpf_sock`, whose source port is in the machine's order.
const SOCKET: i16 = 168;
const SOCKET_PROTOCOL: i16 = 12;
const SOURCE_PORT: i16 = 44;
const STATE: i16 = 72;

/// `BPF_FUNC_sk_fullsock`, `BPF_TCP_LISTEN`.
const SK_FULLSOCK: u32 = 95;
const LISTEN: u32 = 10;

/// Registers: the IPv4 address, the port, four words of an IPv6 address, and one for between.
const IP: u8 = 3;
const PORT: u8 = 4;
const SCRATCH: u8 = 5;
const WORDS: u8 = 6;

/// `IPPROTO_TCP`.
const TCP: u32 = 6;

/// Metadata service of a cloud over IPv6; others use link-local addresses.
const METADATA_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);

/// Limit of local addresses: keeps the program below 4096 instructions, the kernel's limit without
/// privileges.
const MOST_LOCAL: usize = 100;

/// Limit of named networks, for the same reason.
pub(crate) const MOST_NETWORKS: usize = 64;

#[cfg(test)]
mod tests {
    use super::super::network::*;

    #[test]
    fn local_addresses_are_found() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     +-- 10.0.0.0/24 2 0 2\n        |-- 10.0.0.0\n           /24 link UNICAST\n        |-- 10.0.0.7\n           /32 host LOCAL\n     |-- 127.0.0.1\n           /32 host LOCAL\n        |-- 10.0.0.7\n           /32 host LOCAL\n";
        assert_eq!(local_v4(trie), [IpAddr::from([10, 0, 0, 7])]);
        let table = "00000000000000000000000000000001 01 80 10 80       lo\nfd00000000000000000000000000000a 02 40 00 80     eth0\n";
        assert_eq!(local_v6(table), ["fd00::a".parse::<IpAddr>().unwrap()]);
    }

    /// Each renewal that failed half-way left its programs, of which the kernel takes 64.
    #[test]
    fn renewals_that_fail_leave_no_program() {
        let roots = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(Path::new);
        let Some(root) = roots
            .into_iter()
            .find(|dir| dir.join("cgroup.procs").exists())
        else {
            return;
        };
        // Gateways remove what is named like theirs.
        let group = root.join(format!("filters-{}", uuid::Uuid::new_v4().simple()));
        if !is_offered() || fs::create_dir(&group).is_err() {
            return;
        }
        let Ok(mut filter) = Filter::attach(Unreachable::default(), &group) else {
            fs::remove_dir(&group).unwrap();
            return;
        };
        let others = std::iter::from_fn(|| {
            let other = syscalls::load_filter(&allow(), BIND_V6).unwrap();
            let attached =
                syscalls::attach_filter(filter.group.as_fd(), other.as_fd(), BIND_V6).is_ok();
            attached.then_some(other)
        });
        let others: Vec<OwnedFd> = others.collect();
        let failed = (0..70).all(|_| filter.renew().is_err());
        let left = filter.programs.len();
        let detached = syscalls::detach_filter(filter.group.as_fd(), others[0].as_fd(), BIND_V6);
        let renewed = filter.renew();
        fs::remove_dir(&group).unwrap();
        assert!(failed && detached.is_ok());
        assert_eq!(left, 4);
        renewed.unwrap();
    }

    #[test]
    fn programs_stay_below_the_kernels_bound() {
        let most = Unreachable {
            ports: vec![1, 2, 3],
            everywhere: vec![4],
            stores: vec![SocketAddr::from(([10, 0, 0, 2], 5)); 8],
            networks: vec!["fd00::/8".parse().unwrap(); MOST_NETWORKS],
            local: vec![IpAddr::from([10, 0, 0, 1]); MOST_LOCAL],
        };
        assert!(most.program_v4().len() < 4096);
        assert!(most.program_v6().len() < 4096);
        assert!(accepts_on(&[7; 1000]).len() < 4096);
    }
}
