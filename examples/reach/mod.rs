//! What the hostile child tries to reach: sockets, shared memory, queues and semaphores of others.

use std::{
    io,
    os::unix::net::{UnixDatagram, UnixListener, UnixStream},
};

/// Runs one attempt; the text begins with "refused" if it fails.
pub(crate) fn attempt(what: &str, path: &str, number: i32) -> String {
    let outcome = match what {
        "unix" => connect(path),
        "unix_own" => own_socket(),
        "unix_browser" => browser_socket(),
        "unix_pair" => UnixStream::pair().map(|_| "connected".into()),
        "unix_datagram" => UnixDatagram::pair()
            .and_then(|(one, _)| Ok(format!("sent {}", one.send_to(&[0], path)?))),
        "mptcp" => multipath(path),
        "listen" => listen(path),
        "segment" => attach(number),
        "segment_make" => make_segment(),
        "segment_remove" => remove(number),
        "queues" => queues(number, path, 0),
        "queues_make" => queues(number, path, libc::IPC_CREAT),
        "queues_remove" => remove_queues(number, path),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    };
    outcome.unwrap_or_else(|error| format!("refused: {error}"))
}

/// Connects to an address of IP.
pub(crate) fn tcp(address: &str) -> String {
    let Ok(address) = address.parse() else {
        return "no address".into();
    };
    match std::net::TcpStream::connect_timeout(&address, std::time::Duration::from_secs(2)) {
        Ok(_) => "connected".into(),
        Err(error) => format!("refused: {error}"),
    }
}

/// Connects to a UNIX socket; a name that begins with "@" is abstract.
fn connect(path: &str) -> io::Result<String> {
    use std::os::linux::net::SocketAddrExt;
    match path.strip_prefix('@') {
        Some(name) => {
            let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
            UnixStream::connect_addr(&address)
        }
        None => UnixStream::connect(path),
    }
    .map(|_| "connected".into())
}

/// Listens in the private directory, and connects to that.
fn own_socket() -> io::Result<String> {
    let _listener = UnixListener::bind("own.sock")?;
    let outcome = UnixStream::connect("own.sock");
    std::fs::remove_file("own.sock")?;
    outcome.map(|_| "connected".into())
}

/// Listens where Chromium does, by the whole path, and connects to that.
fn browser_socket() -> io::Result<String> {
    let dir = std::env::temp_dir().join(".org.chromium.Chromium.Ab12Cd");
    std::fs::create_dir_all(&dir)?;
    let path = dir.join("SingletonSocket");
    let listener = UnixListener::bind(&path);
    let outcome = listener.and_then(|_| UnixStream::connect(&path));
    std::fs::remove_dir_all(dir)?;
    outcome.map(|_| "connected".into())
}

/// Listens at an address, or without being bound to one, until the end of the process.
fn listen(address: &str) -> io::Result<String> {
    use std::os::fd::{FromRawFd, IntoRawFd};
    let listener = if address.is_empty() {
        // SAFETY: the descriptor has no other owner.
        unsafe {
            let socket = libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0);
            if socket < 0 || libc::listen(socket, 8) < 0 {
                return Err(io::Error::last_os_error());
            }
            std::net::TcpListener::from_raw_fd(socket)
        }
    } else {
        std::net::TcpListener::bind(address)?
    };
    let port = listener.local_addr()?.port();
    _ = listener.into_raw_fd();
    Ok(format!("port {port}"))
}

/// Connects by Multipath TCP, which servers without it take for TCP.
fn multipath(address: &str) -> io::Result<String> {
    let address: std::net::SocketAddrV4 = address.parse().map_err(io::Error::other)?;
    let to = libc::sockaddr_in {
        sin_family: libc::sa_family_t::try_from(libc::AF_INET).map_err(io::Error::other)?,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from(*address.ip()).to_be(),
        },
        sin_zero: [0; 8],
    };
    let length = libc::socklen_t::try_from(size_of_val(&to)).map_err(io::Error::other)?;
    // SAFETY: the address is read with its length, and the descriptor stays open.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_MPTCP);
        if socket == -1 {
            return Err(io::Error::last_os_error());
        }
        done(libc::connect(socket, (&raw const to).cast(), length))?;
    }
    Ok("connected".into())
}

/// Reads the first byte of a System V segment.
fn attach(id: i32) -> io::Result<String> {
    // SAFETY: the kernel chooses the address, and the segment has at least one byte.
    unsafe {
        let at = libc::shmat(id, std::ptr::null(), libc::SHM_RDONLY);
        if at.addr() == usize::MAX {
            return Err(io::Error::last_os_error());
        }
        let byte = *at.cast::<u8>();
        libc::shmdt(at);
        Ok(format!("read {byte}"))
    }
}

/// A System V segment with the byte 77, which stays.
fn make_segment() -> io::Result<String> {
    // SAFETY: the kernel chooses the address, and the segment has at least one byte.
    unsafe {
        let id = libc::shmget(libc::IPC_PRIVATE, 4096, 0o600);
        if id == -1 {
            return Err(io::Error::last_os_error());
        }
        let at = libc::shmat(id, std::ptr::null(), 0);
        if at.addr() == usize::MAX {
            return Err(io::Error::last_os_error());
        }
        *at.cast::<u8>() = 77;
        libc::shmdt(at);
        Ok(id.to_string())
    }
}

fn remove(id: i32) -> io::Result<String> {
    // SAFETY: no pointer is read.
    done(unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) })
}

/// Opens a semaphore, a message queue and a POSIX message queue; names those that it got.
fn queues(key: i32, name: &str, flags: i32) -> io::Result<String> {
    let name = std::ffi::CString::new(name)?;
    let flags = flags | 0o666;
    let create = if flags & libc::IPC_CREAT == 0 {
        0
    } else {
        libc::O_CREAT
    };
    let null = std::ptr::null_mut::<libc::mq_attr>();
    // SAFETY: numbers, a name that ends with a null byte, and a null pointer for the default.
    let got = unsafe {
        [
            ("semaphore", libc::semget(key, 1, flags)),
            ("queue", libc::msgget(key, flags)),
            (
                "posix",
                libc::mq_open(name.as_ptr(), libc::O_RDWR | create, 0o666, null),
            ),
        ]
    };
    let error = io::Error::last_os_error();
    let got = got.iter().filter(|(_, id)| *id != -1);
    let got: Vec<&str> = got.map(|(name, _)| *name).collect();
    if got.is_empty() {
        return Err(error);
    }
    Ok(got.join(" "))
}

fn remove_queues(key: i32, name: &str) -> io::Result<String> {
    let name = std::ffi::CString::new(name)?;
    // SAFETY: numbers, a name that ends with a null byte, and no argument that is read.
    done(unsafe {
        libc::semctl(libc::semget(key, 1, 0), 0, libc::IPC_RMID)
            | libc::msgctl(libc::msgget(key, 0), libc::IPC_RMID, std::ptr::null_mut())
            | libc::mq_unlink(name.as_ptr())
    })
}

fn done(outcome: i32) -> io::Result<String> {
    if outcome == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok("done".into())
}
