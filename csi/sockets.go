package csi

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
)

// lookAgain is how soon a socket is looked for without an event: watches end with the directory that they are of, and a
// machine may have none left.
const lookAgain = 10 * time.Second

// watchSocket tells when something is made at the path of an endpoint, and now and then without that, until ctx ends.
// The directory need not be there yet.
func watchSocket(ctx context.Context, endpoint string, wait *sync.WaitGroup) <-chan struct{} {
	made := make(chan struct{}, 1)
	path, err := SocketPath(endpoint)
	if err != nil { // it is reached without one
		return made
	}
	wait.Go(func() {
		for ctx.Err() == nil {
			if watchOnce(ctx, path, made) {
				continue
			}
			select {
			case <-ctx.Done():
			case <-time.After(lookAgain):
			}
			ring(made)
		}
	})
	return made
}

// watchOnce watches the directory of a socket, or the one above it that is there, until something changes what is to be
// watched: true.
func watchOnce(ctx context.Context, path string, made chan struct{}) (again bool) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return false
	}
	defer w.Close()
	dir, next := filepath.Dir(path), path
	for {
		err := w.Add(dir)
		if err == nil {
			break
		}
		if dir == "/" {
			return false
		}
		dir, next = filepath.Dir(dir), dir
	}
	if _, err := os.Lstat(next); next != path && err == nil { // it was made meanwhile
		return true
	}
	ring(made) // what was there before the watch is no event
	for {
		select {
		case <-ctx.Done():
			return false
		case e, ok := <-w.Events:
			switch {
			case !ok:
				return false
			case e.Name == dir && (e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename)):
				return true
			case e.Name != next || !e.Has(fsnotify.Create):
			case next == path:
				ring(made)
			default:
				return true
			}
		case _, ok := <-w.Errors: // events were lost, perhaps
			if !ok {
				return false
			}
			ring(made)
		case <-time.After(lookAgain):
			ring(made)
		}
	}
}

func ring(bell chan struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}

// Run takes on the drivers whose sockets the configuration gives, until ctx ends.
func (d *Drivers) Run(ctx context.Context) error {
	for _, s := range d.cfg.Sockets {
		if _, err := SocketPath(s); err != nil {
			return fmt.Errorf("socket of a CSI driver: %w", err)
		}
	}
	var wait sync.WaitGroup
	defer wait.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, s := range d.cfg.Sockets {
		wait.Go(func() { d.given(ctx, s, &wait) })
	}
	<-ctx.Done()
	return nil
}

// given takes on the driver of a socket once it answers. From then on it is followed as any other, and keeps its name.
func (d *Drivers) given(ctx context.Context, endpoint string, wait *sync.WaitGroup) {
	made := watchSocket(ctx, endpoint, wait)
	said := ""
	for delay := 100 * time.Millisecond; ctx.Err() == nil; {
		name, err := d.takeGiven(ctx, endpoint)
		if err == nil {
			<-ctx.Done()
			d.Deregister(name, endpoint)
			return
		}
		if text := err.Error(); text != said && ctx.Err() == nil {
			said = text
			d.Refuse(Refusal{"", endpoint, text})
			d.log.Warn("CSI driver is not registered", "endpoint", endpoint, "error", err)
		}
		select {
		case <-ctx.Done():
		case <-made:
			delay = 100 * time.Millisecond
		case <-time.After(delay):
		}
		delay = min(2*delay, lookAgain)
	}
}

func (d *Drivers) takeGiven(ctx context.Context, endpoint string) (string, error) {
	path, err := SocketPath(endpoint)
	if err != nil {
		return "", err
	}
	if st, err := os.Stat(path); err != nil {
		return "", err
	} else if st.Mode().Type() != fs.ModeSocket {
		return "", fmt.Errorf("%s is no socket", path)
	}
	client, err := newClient("", endpoint, nil, d.metrics, d.log)
	if err != nil {
		return "", err
	}
	defer client.close()
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	name, _, err := nameOf(asking, client)
	if err != nil {
		return "", err
	}
	return name, d.take(ctx, Registration{Name: name, Endpoint: endpoint})
}
