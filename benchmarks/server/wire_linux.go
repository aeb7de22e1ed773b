package server

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// A Wire is a proxy that passes on everything after a fixed delay, in both directions. One thread serves
// all connections: each wake-up passes on whatever is due, as a network does, and a benchmark of many
// connections competes with one more runnable thread only.
//
// A Wire does not use the net package, because that has a goroutine wait for each direction of each
// connection. The Go runtime also rounds a sleep of less than a millisecond up to one if nothing else
// runs, and a timer of the kernel is exact.
type Wire struct {
	Addr string

	to    unix.Sockaddr
	delay time.Duration
	begin time.Time // from which instants are measured

	poll, listener, timer, stop int // file descriptors
	ends                        map[int]*end
	parcels                     []parcel // in the order in which they are due, because all have the same delay
	free                        [][]byte
}

// An end is the wire's socket to a client or to the server. Its peer is the other end of the connection.
type end struct {
	socket int
	peer   *end
	closed bool
}

// A parcel is what was read and is due at an end.
type parcel struct {
	to    *end
	bytes []byte // empty if the connection ended
	due   time.Duration
}

// parcelSize is the most that one read gets.
const parcelSize = 16 << 10

// NewWire returns a wire to the server at an address with the number of a port. Nothing passes before Run.
func NewWire(to string, delay time.Duration) (*Wire, error) {
	addr, err := netip.ParseAddrPort(to)
	if err != nil {
		return nil, err
	}
	w := &Wire{
		to:    &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()},
		delay: delay,
		begin: time.Now(),
		ends:  make(map[int]*end),
	}
	var errs [4]error
	w.poll, errs[0] = unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	w.timer, errs[1] = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC)
	w.stop, errs[2] = unix.Eventfd(0, unix.EFD_CLOEXEC)
	w.listener, errs[3] = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	if err := unix.Bind(w.listener, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return nil, err
	}
	if err := unix.Listen(w.listener, 1024); err != nil {
		return nil, err
	}
	bound, err := unix.Getsockname(w.listener)
	if err != nil {
		return nil, err
	}
	w.Addr = fmt.Sprintf("127.0.0.1:%d", bound.(*unix.SockaddrInet4).Port)
	return w, errors.Join(w.watch(w.listener), w.watch(w.timer), w.watch(w.stop))
}

// watch makes Run wait for what can be read from a file descriptor.
func (w *Wire) watch(fd int) error {
	return unix.EpollCtl(w.poll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
}

// Stop makes Run return. Any goroutine may call it, once.
func (w *Wire) Stop() {
	_, _ = unix.Write(w.stop, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

// Run passes on what clients and the server send, until Stop. Then it closes all connections.
func (w *Wire) Run() error {
	defer w.close()
	events := make([]unix.EpollEvent, 256)
	for {
		n, err := unix.EpollWait(w.poll, events, -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		for i := range max(0, n) {
			switch fd := int(events[i].Fd); fd {
			case w.stop:
				return nil
			case w.timer: // which deliver sets again
			case w.listener:
				if err := w.accept(); err != nil {
					return err
				}
			default:
				w.read(w.ends[fd])
			}
		}
		if err := w.deliver(); err != nil {
			return err
		}
	}
}

// accept connects the client that waits to the server.
func (w *Wire) accept() error {
	client, _, err := unix.Accept4(w.listener, unix.SOCK_CLOEXEC)
	if err != nil {
		return err
	}
	server, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.Connect(server, w.to); err != nil {
		return err
	}
	a, b := &end{socket: client}, &end{socket: server}
	a.peer, b.peer = b, a
	for _, e := range []*end{a, b} {
		if err := unix.SetsockoptInt(e.socket, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
			return err
		}
		if err := w.watch(e.socket); err != nil {
			return err
		}
		w.ends[e.socket] = e
	}
	return nil
}

// read takes what has arrived at an end, to pass it on to its peer when it is due. Nothing more arrives
// after the end of the connection, or an error: an end that stops sending closes both, when that is due.
func (w *Wire) read(from *end) {
	if from == nil || from.closed { // by an earlier event of the same wake-up
		return
	}
	buf := w.buffer()
	n, err := unix.Read(from.socket, buf)
	if errors.Is(err, unix.EINTR) {
		return // and be told of it again
	}
	if n <= 0 {
		n = 0
		_ = unix.EpollCtl(w.poll, unix.EPOLL_CTL_DEL, from.socket, nil)
	}
	w.parcels = append(w.parcels, parcel{from.peer, buf[:n], time.Since(w.begin) + w.delay})
}

// buffer returns one that was used before, if there is one.
func (w *Wire) buffer() []byte {
	if len(w.free) == 0 {
		return make([]byte, parcelSize)
	}
	last := len(w.free) - 1
	buf := w.free[last]
	w.free = w.free[:last]
	return buf
}

// deliver writes what is due, and sets the timer for what is due next.
func (w *Wire) deliver() error {
	now, delivered := time.Since(w.begin), 0
	for _, p := range w.parcels {
		if p.due > now {
			break
		}
		w.write(p)
		w.free = append(w.free, p.bytes[:parcelSize])
		delivered++
	}
	w.parcels = append(w.parcels[:0], w.parcels[delivered:]...)
	var next unix.ItimerSpec // none, which also takes back what the timer has told
	if len(w.parcels) > 0 {
		next.Value = unix.NsecToTimespec(int64(max(1, w.parcels[0].due-time.Since(w.begin))))
	}
	return unix.TimerfdSettime(w.timer, 0, &next, nil)
}

// write passes on a parcel. It waits until the receiver has room for all of it.
func (w *Wire) write(p parcel) {
	if p.to.closed {
		return
	}
	for rest := p.bytes; len(rest) > 0; {
		n, err := unix.Write(p.to.socket, rest)
		if err != nil && !errors.Is(err, unix.EINTR) {
			w.end(p.to)
			return
		}
		rest = rest[max(0, n):]
	}
	if len(p.bytes) == 0 {
		w.end(p.to)
	}
}

// end closes both ends of a connection.
func (w *Wire) end(e *end) {
	for _, e := range []*end{e, e.peer} {
		if !e.closed {
			e.closed = true
			delete(w.ends, e.socket)
			_ = unix.Close(e.socket)
		}
	}
}

func (w *Wire) close() {
	for _, e := range w.ends {
		w.end(e)
	}
	for _, fd := range []int{w.poll, w.listener, w.timer, w.stop} {
		_ = unix.Close(fd)
	}
}
