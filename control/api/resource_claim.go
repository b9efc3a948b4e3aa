package api

import (
	"encoding/json"
	"fmt"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api/check"
)

// setDeviceDefaults fills in what the API server would for the requests of a ResourceClaim or of a template of one.
func setDeviceDefaults(s *resourcev1.ResourceClaimSpec) {
	set := func(mode *resourcev1.DeviceAllocationMode, count *int64, tolerations []resourcev1.DeviceToleration) {
		or(mode, resourcev1.DeviceAllocationModeExactCount)
		if *mode == resourcev1.DeviceAllocationModeExactCount {
			or(count, 1)
		}
		for i := range tolerations {
			or(&tolerations[i].Operator, resourcev1.DeviceTolerationOpEqual)
		}
	}
	for i := range s.Devices.Requests {
		r := &s.Devices.Requests[i]
		if e := r.Exactly; e != nil {
			set(&e.AllocationMode, &e.Count, e.Tolerations)
		}
		for j := range r.FirstAvailable {
			f := &r.FirstAvailable[j]
			set(&f.AllocationMode, &f.Count, f.Tolerations)
		}
	}
}

// asked is what a claim's requests are called, with how many devices each wants: of a request with alternatives each is
// <request>/<alternative>, and one of them is enough.
type asked struct {
	names  sets.Set[string] // of requests, and of alternatives
	counts map[string]int64 // 0: as many as there are
}

func validateDeviceClaim(c *resourcev1.DeviceClaim, path *field.Path) (asked, field.ErrorList) {
	all := asked{names: sets.New[string](), counts: map[string]int64{}}
	errs := atMost(path.Child("requests"), len(c.Requests), resourcev1.DeviceRequestsMaxSize)
	seen := sets.New[string]()
	for i := range c.Requests {
		r, at := &c.Requests[i], path.Child("requests").Index(i)
		errs = append(errs, requiredLabel(at.Child("name"), r.Name, seen)...)
		all.names.Insert(r.Name)
		if (r.Exactly != nil) == (len(r.FirstAvailable) > 0) {
			errs = append(errs, field.Invalid(at, r.Name, "must have exactly one of exactly and firstAvailable"))
			continue
		}
		if e := r.Exactly; e != nil {
			all.counts[r.Name] = e.Count
			errs = append(errs, validateDevices(devices{e.DeviceClassName, e.Selectors, e.AllocationMode, e.Count, e.Tolerations}, at.Child("exactly"))...)
		}
		errs = append(errs, atMost(at.Child("firstAvailable"), len(r.FirstAvailable), resourcev1.FirstAvailableDeviceRequestMaxSize)...)
		alternatives := sets.New[string]()
		for j := range r.FirstAvailable {
			f, at := &r.FirstAvailable[j], at.Child("firstAvailable").Index(j)
			errs = append(errs, requiredLabel(at.Child("name"), f.Name, alternatives)...)
			all.names.Insert(r.Name + "/" + f.Name)
			all.counts[r.Name+"/"+f.Name] = f.Count
			errs = append(errs, validateDevices(devices{f.DeviceClassName, f.Selectors, f.AllocationMode, f.Count, f.Tolerations}, at)...)
		}
	}
	errs = append(errs, atMost(path.Child("constraints"), len(c.Constraints), resourcev1.DeviceConstraintsMaxSize)...)
	for i := range c.Constraints {
		at := path.Child("constraints").Index(i)
		errs = append(errs, all.known(c.Constraints[i].Requests, at.Child("requests"))...)
		if (c.Constraints[i].MatchAttribute != nil) == (c.Constraints[i].DistinctAttribute != nil) {
			errs = append(errs, field.Invalid(at, "", "must have exactly one of matchAttribute and distinctAttribute"))
		}
	}
	errs = append(errs, atMost(path.Child("config"), len(c.Config), resourcev1.DeviceConfigMaxSize)...)
	for i := range c.Config {
		at := path.Child("config").Index(i)
		errs = append(errs, all.known(c.Config[i].Requests, at.Child("requests"))...)
		errs = append(errs, validateDeviceConfig(&c.Config[i].DeviceConfiguration, at)...)
	}
	return all, errs
}

// known refuses names that are none of the claim's requests.
func (a asked) known(names []string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, n := range names {
		if !a.names.Has(n) {
			errs = append(errs, field.Invalid(path.Index(i), n, a.must()))
		}
	}
	return errs
}

func (a asked) must() string {
	return "must be the name of a request in the claim: " + strings.Join(sets.List(a.names), ", ")
}

// devices is what a request, or one of its alternatives, says of what it wants.
type devices struct {
	class       string
	selectors   []resourcev1.DeviceSelector
	mode        resourcev1.DeviceAllocationMode
	count       int64
	tolerations []resourcev1.DeviceToleration
}

func validateDevices(d devices, path *field.Path) field.ErrorList {
	errs := check.Required(path.Child("deviceClassName"), d.class)
	errs = append(errs, check.Subdomain(path.Child("deviceClassName"), d.class)...)
	errs = append(errs, atMost(path.Child("selectors"), len(d.selectors), resourcev1.DeviceSelectorsMaxSize)...)
	for i, s := range d.selectors {
		at := path.Child("selectors").Index(i).Child("cel")
		if s.CEL == nil {
			errs = append(errs, field.Required(at, ""))
			continue
		}
		errs = append(errs, check.Required(at.Child("expression"), s.CEL.Expression)...)
		if len(s.CEL.Expression) > resourcev1.CELSelectorExpressionMaxLength {
			errs = append(errs, field.TooLong(at.Child("expression"), "", resourcev1.CELSelectorExpressionMaxLength))
		}
	}
	errs = append(errs, check.OneOf(path.Child("allocationMode"), d.mode, resourcev1.DeviceAllocationModeExactCount, resourcev1.DeviceAllocationModeAll)...)
	switch {
	case d.mode == resourcev1.DeviceAllocationModeExactCount && d.count <= 0:
		errs = append(errs, field.Invalid(path.Child("count"), d.count, "must be greater than zero"))
	case d.mode == resourcev1.DeviceAllocationModeAll && d.count != 0:
		errs = append(errs, field.Invalid(path.Child("count"), d.count, "must not be specified when allocationMode is 'All'"))
	}
	errs = append(errs, atMost(path.Child("tolerations"), len(d.tolerations), resourcev1.DeviceTolerationsMaxLength)...)
	for i, t := range d.tolerations {
		errs = append(errs, check.OneOf(path.Child("tolerations").Index(i).Child("operator"), t.Operator, resourcev1.DeviceTolerationOpExists, resourcev1.DeviceTolerationOpEqual)...)
	}
	return errs
}

func validateDeviceConfig(c *resourcev1.DeviceConfiguration, path *field.Path) field.ErrorList {
	at := path.Child("opaque")
	if c.Opaque == nil {
		return field.ErrorList{field.Required(at, "")}
	}
	errs := driverName(at.Child("driver"), c.Opaque.Driver)
	at = at.Child("parameters")
	raw := c.Opaque.Parameters.Raw
	var object map[string]any
	switch {
	case len(raw) == 0:
		errs = append(errs, field.Required(at, ""))
	case len(raw) > resourcev1.OpaqueParametersMaxLength:
		errs = append(errs, field.TooLong(at, "", resourcev1.OpaqueParametersMaxLength))
	case json.Unmarshal(raw, &object) != nil || object == nil:
		errs = append(errs, field.Invalid(at, "<value omitted>", "must be a map"))
	}
	return errs
}

func driverName(path *field.Path, name string) field.ErrorList {
	errs := check.Required(path, name)
	if len(name) > resourcev1.DriverNameMaxLength {
		errs = append(errs, field.TooLong(path, "", resourcev1.DriverNameMaxLength))
	}
	if name != "" {
		errs = append(errs, check.Invalid(path, name, validation.IsDNS1123Subdomain(strings.ToLower(name)))...)
	}
	return errs
}

// validateAllocation holds an allocation to the claim's requests. A scheduler makes none that does not fit; people may.
func validateAllocation(a *resourcev1.AllocationResult, all asked, path *field.Path) field.ErrorList {
	results := path.Child("devices", "results")
	errs := atMost(results, len(a.Devices.Results), resourcev1.AllocationResultsMaxSize)
	got, seen := map[string]int64{}, sets.New[string]()
	for i := range a.Devices.Results {
		r, at := &a.Devices.Results[i], results.Index(i)
		errs = append(errs, check.Required(at.Child("request"), r.Request)...)
		if _, ok := all.counts[r.Request]; !ok && r.Request != "" {
			errs = append(errs, field.Invalid(at.Child("request"), r.Request, all.must()+" (with alternatives <request>/<alternative>)"))
		}
		got[r.Request]++
		errs = append(errs, driverName(at.Child("driver"), r.Driver)...)
		errs = append(errs, poolName(at.Child("pool"), r.Pool)...)
		errs = append(errs, check.Required(at.Child("device"), r.Device)...)
		errs = append(errs, check.Label(at.Child("device"), r.Device)...)
		id := r.Driver + "/" + r.Pool + "/" + r.Device
		if r.ShareID != nil {
			id += "/" + string(*r.ShareID)
		}
		if admin := r.AdminAccess != nil && *r.AdminAccess; seen.Has(id) && !admin {
			errs = append(errs, field.Duplicate(at, id))
		}
		seen.Insert(id)
	}
	errs = append(errs, all.complete(got, results)...)
	errs = append(errs, atMost(path.Child("devices", "config"), len(a.Devices.Config), 2*resourcev1.DeviceConfigMaxSize)...)
	for i := range a.Devices.Config {
		c, at := &a.Devices.Config[i], path.Child("devices", "config").Index(i)
		errs = append(errs, check.OneOf(at.Child("source"), c.Source, resourcev1.AllocationConfigSourceClass, resourcev1.AllocationConfigSourceClaim)...)
		errs = append(errs, all.known(c.Requests, at.Child("requests"))...)
		errs = append(errs, validateDeviceConfig(&c.DeviceConfiguration, at)...)
	}
	return append(errs, validateNodeSelector(a.NodeSelector, path.Child("nodeSelector"))...)
}

// complete wants devices for every request, as many as it asks for, and for one of the alternatives of those that have
// some.
func (a asked) complete(got map[string]int64, results *field.Path) field.ErrorList {
	var errs field.ErrorList
	chosen := map[string]int{}
	for _, name := range sets.List(sets.KeySet(a.counts)) {
		main, _, alternative := strings.Cut(name, "/")
		has, count := got[name], a.counts[name]
		if alternative {
			if chosen[main] += 0; has == 0 { // it is among those that want one
				continue
			}
			chosen[main]++
		}
		if has < max(count, 1) || has > count && count > 0 {
			errs = append(errs, field.Invalid(results, has, fmt.Sprintf("must have %d for request %q", max(count, 1), name)))
		}
	}
	for _, main := range sets.List(sets.KeySet(chosen)) {
		if n := chosen[main]; n != 1 {
			errs = append(errs, field.Invalid(results, n, fmt.Sprintf("must have devices for exactly one alternative of request %q", main)))
		}
	}
	return errs
}

// poolName: DNS subdomains with slashes between them.
func poolName(path *field.Path, name string) field.ErrorList {
	errs := check.Required(path, name)
	if len(name) > resourcev1.PoolNameMaxLength {
		return append(errs, field.TooLong(path, "", resourcev1.PoolNameMaxLength))
	}
	for part := range strings.SplitSeq(name, "/") {
		if name != "" {
			errs = append(errs, check.Invalid(path, name, validation.IsDNS1123Subdomain(part))...)
		}
	}
	return errs
}

func atMost(path *field.Path, n, most int) field.ErrorList {
	if n <= most {
		return nil
	}
	return field.ErrorList{field.TooMany(path, n, most)}
}
