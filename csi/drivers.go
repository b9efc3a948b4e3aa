package csi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
)

// Config is what [Drivers] work with.
type Config struct {
	// Sockets are those of drivers without a registrar: each is watched for, asked who it is, and taken on when it
	// answers.
	Sockets []string
	// Own is the name of a driver that is in this process, and that no other can have; "": there is none. Wanted is
	// called when somebody asks for it and it is not there, and must not wait.
	Own    string
	Wanted func()
	Log    *slog.Logger
}

// Registration is what a driver's registrar says about it.
type Registration struct {
	Name     string
	Endpoint string   // the socket of the driver
	Versions []string // of the CSI specification
	Dial     Dialer   // instead of the socket, for a driver in this process; nil: the socket
}

// Event is a driver that has come, has come again, or has gone.
type Event struct {
	Driver string
	Here   bool // it can be called from now on
}

// Refusal is a driver that wants to be registered, and is not.
type Refusal struct{ Name, Endpoint, Why string }

// Drivers are those of the node. It is safe for concurrent use.
type Drivers struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	ctx     context.Context // of what is heard of drivers
	stop    context.CancelFunc
	wait    sync.WaitGroup

	// Held from a change until it was told, so that nobody hears of a driver's end before its coming. Taken before mu.
	order sync.Mutex

	mu      sync.Mutex
	drivers map[string][]*entry // by name, the one that was registered last at the end
	refused map[string]Refusal  // by endpoint
	heard   map[int]func(Event)
	next    int
}

// entry is one registration that was taken on.
type entry struct {
	endpoint string
	client   *Client
	end      context.CancelFunc

	// Guarded by Drivers.mu.
	driver    *Driver
	connected bool
}

// NewDrivers returns Drivers with none registered.
func NewDrivers(cfg Config) *Drivers {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	d := &Drivers{
		cfg: cfg, log: cfg.Log, metrics: newMetrics(),
		drivers: map[string][]*entry{}, refused: map[string]Refusal{}, heard: map[int]func(Event){},
	}
	d.ctx, d.stop = context.WithCancel(context.Background())
	return d
}

// Close drops all drivers, and returns when no subscriber is called any more.
func (d *Drivers) Close() {
	d.stop()
	d.wait.Wait()
}

// Register takes a driver on that its registrar tells of, or says why it cannot be taken. Of two of one name the last
// has the calls.
func (d *Drivers) Register(ctx context.Context, r Registration) error {
	err := CheckName(r.Name)
	if err == nil {
		err = checkVersions(r.Versions)
	}
	if err == nil {
		err = d.take(ctx, r)
	}
	if err != nil {
		if ctx.Err() == nil { // else there is no registrar any more
			d.Refuse(Refusal{Text(r.Name), Text(r.Endpoint), err.Error()})
		}
		return fmt.Errorf("register CSI driver: %w", err)
	}
	return nil
}

// maxRefused is how many refusals are kept.
const maxRefused = 64

// Refuse keeps why a driver is not registered, for those who ask for it.
func (d *Drivers) Refuse(r Refusal) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, again := d.refused[r.Endpoint]; !again && len(d.refused) >= maxRefused {
		for other := range d.refused { // any: nobody may keep the others from being told
			delete(d.refused, other)
			break
		}
	}
	d.refused[r.Endpoint] = r
}

// Forget drops why a driver is not registered, whose registrar has gone. One that is registered there stays.
func (d *Drivers) Forget(name, endpoint string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r, ok := d.refused[Text(endpoint)]; ok && r.Name == Text(name) {
		delete(d.refused, Text(endpoint))
	}
}

// takeTimeout is how long a driver may take to say what it can do. A registrar that waits for the answer waits for ten
// seconds.
const takeTimeout = 8 * time.Second

// take asks a driver what it can do, and has it be one of those of the node.
func (d *Drivers) take(ctx context.Context, r Registration) error {
	if r.Name == d.cfg.Own && r.Name != "" && r.Dial == nil {
		return fmt.Errorf("the agent has %s itself", r.Name)
	}
	client, err := newClient(r.Name, r.Endpoint, r.Dial, d.metrics, d.log)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, takeTimeout)
	defer cancel()
	driver, err := ask(ctx, r.Name, r.Endpoint, client)
	if err != nil {
		client.close()
		return err
	}
	following, end := context.WithCancel(d.ctx)
	e := &entry{endpoint: r.Endpoint, client: client, end: end, driver: driver, connected: true}
	d.order.Lock()
	defer d.order.Unlock()
	d.mu.Lock()
	if d.ctx.Err() != nil {
		d.mu.Unlock()
		end()
		client.close()
		return errors.New("the agent ends")
	}
	d.drivers[r.Name] = append(d.drivers[r.Name], e)
	delete(d.refused, r.Endpoint)
	d.wait.Go(func() {
		defer client.close()
		d.follow(following, r.Name, e)
	})
	d.mu.Unlock()
	d.log.Info("CSI driver is registered", "driver", r.Name, "endpoint", r.Endpoint, "version", driver.Vendor, "node-id", driver.NodeID)
	d.tell(Event{r.Name, true})
	return nil
}

// Deregister lets a driver go whose registrar has. The one of its name that was registered before it has the calls
// again, if it is there.
func (d *Drivers) Deregister(name, endpoint string) {
	d.order.Lock()
	defer d.order.Unlock()
	d.mu.Lock()
	list := d.drivers[name]
	delete(d.refused, endpoint)
	i := slices.IndexFunc(list, func(e *entry) bool { return e.endpoint == endpoint })
	if i < 0 {
		d.mu.Unlock()
		return
	}
	list[i].end()
	list[i].client.close()
	if list = slices.Delete(slices.Clone(list), i, i+1); len(list) == 0 {
		delete(d.drivers, name)
	} else {
		d.drivers[name] = list
	}
	here := len(list) > 0
	d.mu.Unlock()
	d.log.Info("CSI driver is gone", "driver", name, "endpoint", endpoint)
	d.tell(Event{name, here})
}

// Get returns the driver of a name; [ErrNotRegistered]: there is none.
func (d *Drivers) Get(name string) (*Driver, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := d.drivers[name]
	if len(list) == 0 {
		if name == d.cfg.Own && d.cfg.Wanted != nil {
			d.cfg.Wanted()
		}
		for _, r := range d.refused {
			if r.Name == name {
				return nil, fmt.Errorf("%w: %s: %s", ErrNotRegistered, name, r.Why)
			}
		}
		return nil, fmt.Errorf("%w: %s", ErrNotRegistered, Text(name))
	}
	return list[len(list)-1].driver, nil
}

// Status is a driver, and whether its socket answers now.
type Status struct {
	*Driver
	Connected bool
}

// List returns the drivers that are registered, in order of their names.
func (d *Drivers) List() []Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []Status
	for _, name := range slices.Sorted(maps.Keys(d.drivers)) {
		last := d.drivers[name][len(d.drivers[name])-1]
		out = append(out, Status{last.driver, last.connected})
	}
	return out
}

// Refused returns the drivers that are not registered, with why, in order.
func (d *Drivers) Refused() []Refusal {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []Refusal
	for _, endpoint := range slices.Sorted(maps.Keys(d.refused)) {
		out = append(out, d.refused[endpoint])
	}
	return out
}

// Subscribe has fn hear of each driver that comes or goes, until end is called. It must not wait, and hears of one
// thing after another only as far as they happen to one driver.
func (d *Drivers) Subscribe(fn func(Event)) (end func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	id := d.next
	d.next++
	d.heard[id] = fn
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.heard, id)
	}
}

func (d *Drivers) tell(e Event) {
	d.mu.Lock()
	fns := slices.Collect(maps.Values(d.heard))
	d.mu.Unlock()
	for _, fn := range fns {
		fn(e)
	}
}

// follow hears of a driver's end, and of its return on the same socket, of which no registrar tells: it may be able to
// do more or less by then.
func (d *Drivers) follow(ctx context.Context, name string, e *entry) {
	made := watchSocket(ctx, e.endpoint, &d.wait)
	conn := e.client.conn
	lost, delay, since := false, paceMin, time.Now()
	for state := conn.GetState(); ctx.Err() == nil; state = conn.GetState() {
		if state != connectivity.Ready && !lost {
			lost = true
			d.log.Warn("CSI driver does not answer", "driver", name, "endpoint", e.endpoint)
			d.lost(name, e)
			if time.Since(since) > paceMax { // it was there for a while
				delay = paceMin
			}
		}
		pace := time.Duration(0) // how long the state may last
		switch {
		case state == connectivity.Ready && lost && d.again(ctx, name, e):
			lost, since = false, time.Now()
		case state == connectivity.Ready && lost, state == connectivity.Idle:
			pace, delay = delay, min(2*delay, paceMax)
		}
		if awaitChange(ctx, conn, state, made, pace) && state == connectivity.Idle {
			conn.Connect()
		}
	}
}

// How soon a driver is asked or connected to again that closes what it accepts, or does not say what it can do. Each
// time that it comes and goes is in the log, and everybody who waits for it tries again.
const (
	paceMin = 10 * time.Millisecond
	paceMax = 3 * time.Second
)

// awaitChange waits until a connection has left a state, or has had it for as long as it may, where that is not 0:
// true. Meanwhile the making of the driver's socket has it be connected to at once.
func awaitChange(ctx context.Context, conn *grpc.ClientConn, state connectivity.State, made <-chan struct{}, may time.Duration) (late bool) {
	changed := make(chan struct{})
	waiting, cancel := context.WithCancel(ctx)
	go func() {
		defer close(changed)
		conn.WaitForStateChange(waiting, state)
	}()
	defer func() {
		cancel()
		<-changed
	}()
	var over <-chan time.Time
	if may > 0 {
		over = time.After(may)
	}
	for {
		select {
		case <-changed:
			return false
		case <-over:
			return true
		case <-made:
			conn.ResetConnectBackoff()
			if state == connectivity.Idle {
				conn.Connect()
			}
		}
	}
}

// lost tells that a driver does not answer.
func (d *Drivers) lost(name string, e *entry) {
	d.order.Lock()
	defer d.order.Unlock()
	d.mu.Lock()
	e.connected = false
	d.mu.Unlock()
	d.tell(Event{name, false})
}

// again asks a driver that is back; false: it does not answer as it should.
func (d *Drivers) again(ctx context.Context, name string, e *entry) bool {
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	driver, err := ask(asking, name, e.endpoint, e.client)
	if err != nil {
		if ctx.Err() == nil {
			d.log.Warn("CSI driver is back, and does not say what it can do", "driver", name, "error", err)
		}
		return false
	}
	d.order.Lock()
	defer d.order.Unlock()
	d.mu.Lock()
	e.driver, e.connected = driver, true
	d.mu.Unlock()
	d.log.Info("CSI driver is back", "driver", name, "endpoint", e.endpoint)
	d.tell(Event{name, true})
	return true
}
