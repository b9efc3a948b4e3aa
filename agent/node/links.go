package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// WatchAddresses calls changed when the addresses of the machine may be others, until ctx ends: the kernel tells of
// each address and route that comes or goes. Find is what they are. A pod's network is such a change, too, and changes
// nothing here.
func WatchAddresses(ctx context.Context, find func() []string, changed func(), log *slog.Logger) {
	told := ""
	for ctx.Err() == nil {
		err := listen(ctx, find, changed)
		if ctx.Err() != nil || err == nil {
			return
		}
		if err.Error() != told {
			log.Warn("kernel does not tell of addresses that change", "error", err)
			told = err.Error()
		}
		sleep(ctx, 10*time.Second, nil)
	}
}

// listen hears of addresses until that ends.
func listen(ctx context.Context, find func() []string, changed func()) error {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return fmt.Errorf("listen for addresses: %w", err)
	}
	end := context.AfterFunc(ctx, s.Close) // a receive that is under way ends with it
	defer func() {
		if end() {
			s.Close()
		}
	}()
	last := find()
	changed() // those from before it was listened to
	for ctx.Err() == nil {
		_, _, err := s.Receive()
		// With this one some were lost: it is looked at anyway.
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return fmt.Errorf("hear of addresses: %w", err)
		}
		if now := find(); !slices.Equal(now, last) {
			last = now
			changed()
		}
	}
	return nil
}
