package plane

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
)

// firstPort and lastPort bound the ports that tests choose. Above are those of services (node ports), and those that
// the kernel gives by itself.
const firstPort, lastPort = 10_000, 29_999

// Port chooses a port that is free at some addresses, and is this test's until it ends. One that the kernel had given,
// and that was closed, might be given again before it is listened at, to another listener or to any connection. So it
// is not of the kernel's range, and it is kept from other tests, also of other processes, by a name that only one can
// have.
func Port(t *testing.T, addresses ...string) string {
	t.Helper()
	first, last, err := portRange()
	if err != nil {
		t.Fatal(err)
	}
	var out string
	Until(t, "a port is free at "+strings.Join(addresses, ", "), func() error {
		port := strconv.Itoa(first + rand.IntN(last-first+1))
		var config net.ListenConfig
		mine, err := config.Listen(t.Context(), "unix", "@berth-test-port-"+port)
		if err != nil {
			return err
		}
		if err := free(t.Context(), port, addresses); err != nil {
			return errors.Join(err, mine.Close())
		}
		t.Cleanup(func() { mine.Close() })
		out = port
		return nil
	})
	return out
}

// portRange is what ports are chosen of: none that the kernel gives by itself.
func portRange() (first, last int, err error) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return 0, 0, err
	}
	var from, to int
	if _, err := fmt.Sscan(string(text), &from, &to); err != nil {
		return 0, 0, fmt.Errorf("read range of local ports %q: %w", text, err)
	}
	switch {
	case from > lastPort:
		return firstPort, lastPort, nil
	case from-firstPort > 1000:
		return firstPort, from - 1, nil
	case to < 1<<16-1000:
		return to + 1, 1<<16 - 1, nil
	}
	return 0, 0, fmt.Errorf("the kernel gives all ports from %d to %d by itself", from, to)
}

func free(ctx context.Context, port string, addresses []string) error {
	var config net.ListenConfig
	for _, a := range addresses {
		l, err := config.Listen(ctx, "tcp", net.JoinHostPort(a, port))
		if err != nil {
			return err
		}
		defer l.Close()
	}
	return nil
}
