package cri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
)

const dialTimeout = 30 * time.Second

// PortForward copies between a client's stream and a port on the pod's own loopback.
func (s streams) PortForward(ctx context.Context, id string, port int32, client io.ReadWriter) error {
	sb, err := s.pods.Table.ByID.Get(id)
	if err != nil {
		return asStatus(err)
	}
	if _, err := sb.Live(); err != nil {
		return asStatus(err)
	}
	conn, err := dialIn(ctx, sb.Record().NetNS, port)
	if err != nil {
		return asStatus(fmt.Errorf("forward port %d of sandbox %s: %w", port, id, err))
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	// The client ending its half is told to the pod, which may go on answering; the pod ending its half ends it all.
	go func() {
		if _, err := io.Copy(conn, client); err != nil {
			conn.Close()
			return
		}
		if t, ok := conn.(*net.TCPConn); ok {
			_ = t.CloseWrite()
		}
	}()
	if _, err := io.Copy(client, conn); err != nil && ctx.Err() == nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, io.ErrClosedPipe) {
		return fmt.Errorf("forward port %d of sandbox %s: %w", port, id, err)
	}
	return nil
}

// dialIn connects to localhost in a network namespace, "" being this one: first over IPv4, then over IPv6.
func dialIn(ctx context.Context, netns string, port int32) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var conn net.Conn
	dial := func() error {
		var errs []error
		for _, host := range []string{"127.0.0.1", "::1"} {
			// For one literal address, Dial makes the socket on this very thread.
			c, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
			if err == nil {
				conn = c
				return nil
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}
	if netns == "" {
		return conn, dial()
	}
	err := ns.WithNetNSPath(netns, func(ns.NetNS) error { return dial() })
	return conn, err
}
