package main

import (
	"context"
	"log/slog"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// storePatience is how long the end of the process waits for an answer of etcd. Members have a leader within two
	// seconds, if most of them run.
	storePatience = 3 * time.Second
	// storeAgain is how soon etcd is asked again while the server ends: the other members may end meanwhile.
	storeAgain = time.Second
)

// giveUp lets go of an etcd that does not answer, from when ctx ends until the server has. A request would wait for it
// as long as it may take, a minute, and leases to be given back, and etcd's own end, after that: nothing of it is done
// while most members are gone.
func giveUp(ctx context.Context, ended <-chan struct{}, client *clientv3.Client, log *slog.Logger) {
	select {
	case <-ctx.Done():
	case <-ended:
		return
	}
	for {
		asked, cancel := context.WithTimeout(context.WithoutCancel(ctx), storePatience)
		go func() {
			select {
			case <-ended:
				cancel()
			case <-asked.Done():
			}
		}()
		_, err := client.Get(asked, "/", clientv3.WithCountOnly())
		cancel()
		select {
		case <-ended:
			return
		default:
		}
		if err != nil {
			log.Warn("etcd does not answer: the server ends without it, and requests that wait for it fail", "error", err)
			_ = client.Close() // its error is that it was closed
			return
		}
		select {
		case <-ended:
			return
		case <-time.After(storeAgain):
		}
	}
}
