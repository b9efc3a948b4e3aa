package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"
	"github.com/opencontainers/runc/libcontainer"
	"golang.org/x/sys/unix"
)

// receive waits for the keeper's order and takes over the container's stdio.
// When there is none yet, the time is used.
func receive() (launch, error) {
	if args := os.Args[2:]; len(args) == orderArgs {
		return takeOrder(args), nil
	}
	buf, oob := make([]byte, 16<<10), make([]byte, unix.CmsgSpace(4*4))
	n, oobn, err := recvmsg(buf, oob, unix.MSG_DONTWAIT)
	if errors.Is(err, unix.EAGAIN) {
		warmUp()
		n, oobn, err = recvmsg(buf, oob, 0)
	}
	if err != nil {
		return launch{}, os.NewSyscallError("recvmsg", err)
	}
	if n == 0 {
		return launch{}, io.EOF
	}
	part := strings.Split(string(buf[:n]), "\x00")
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(part) != 4 || len(msgs) != 1 {
		return launch{}, errors.New("order of the keeper is not valid")
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != len(part[0]) {
		return launch{}, errors.New("order of the keeper is not valid")
	}
	l := launch{id: part[1], bundle: part[2], state: part[3]}
	for i, fd := range fds {
		if c := part[0][i]; c == 'c' {
			l.console = os.NewFile(uintptr(fd), "console")
		} else if err := unix.Dup3(fd, strings.IndexByte("ioe", c), 0); err != nil {
			return launch{}, os.NewSyscallError("dup3", err)
		}
	}
	return l, nil
}

// The order of a launcher that has its stdio already is in its arguments: the container, its bundle, the directory of
// states, and "c" where it has a console, see launcher_become.
const (
	orderArgs = 4
	consoleFd = 4
)

func takeOrder(args []string) launch {
	l := launch{id: args[0], bundle: args[1], state: args[2], left: true}
	if args[3] == "c" {
		unix.CloseOnExec(consoleFd)
		l.console = os.NewFile(consoleFd, "console")
	}
	return l
}

func recvmsg(buf, oob []byte, flags int) (n, oobn int, err error) {
	for {
		n, oobn, _, _, err = unix.Recvmsg(reportFd, buf, oob, flags|unix.MSG_CMSG_CLOEXEC)
		if !errors.Is(err, unix.EINTR) {
			return n, oobn, err
		}
	}
}

// warmUp has done what every start needs once a process: encoding/json looks at
// all types of a config when it meets them first, and libcontainer looks for
// the cgroup mounts. Together that is a third of a start.
func warmUp() {
	_, _ = decodeSpec([]byte(everyPart))
	_, _ = json.Marshal(&libcontainer.State{})
	_ = readHierarchies()
	_, _ = manager.New(&cgroups.Cgroup{Path: "/", Resources: &cgroups.Resources{}})
}

// everyPart is a config with those parts in it that nearly all configs have.
const everyPart = `{"process":{"user":{},"capabilities":{},"rlimits":[{}]},"root":{},"mounts":[{}],` +
	`"linux":{"namespaces":[{}],"uidMappings":[{}],"devices":[{}],` +
	`"resources":{"devices":[{}],"memory":{},"cpu":{},"pids":{}},"seccomp":{"syscalls":[{"args":[{}]}]}}}`
