package scheme

import (
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
)

// addEvents registers what events.k8s.io calls the fields of an event. What it calls deprecated is what the core group
// has under that name.
func addEvents(s *runtime.Scheme) error {
	return register(s,
		pair[eventsv1.Event, corev1.Event](eventToHub), pair[corev1.Event, eventsv1.Event](eventFromHub),
		pair[eventsv1.EventList, corev1.EventList](func(in *eventsv1.EventList, out *corev1.EventList) {
			out.ListMeta, out.Items = in.ListMeta, each(in.Items, eventToHub)
		}),
		pair[corev1.EventList, eventsv1.EventList](func(in *corev1.EventList, out *eventsv1.EventList) {
			out.ListMeta, out.Items = in.ListMeta, each(in.Items, eventFromHub)
		}),
	)
}

func eventToHub(in *eventsv1.Event, out *corev1.Event) {
	out.ObjectMeta, out.EventTime, out.Action, out.Reason, out.Type = in.ObjectMeta, in.EventTime, in.Action, in.Reason, in.Type
	out.ReportingController, out.ReportingInstance = in.ReportingController, in.ReportingInstance
	out.InvolvedObject, out.Related, out.Message, out.Source = in.Regarding, in.Related, in.Note, in.DeprecatedSource
	out.FirstTimestamp, out.LastTimestamp, out.Count = in.DeprecatedFirstTimestamp, in.DeprecatedLastTimestamp, in.DeprecatedCount
	out.Series = nil
	if in.Series != nil {
		out.Series = &corev1.EventSeries{Count: in.Series.Count, LastObservedTime: in.Series.LastObservedTime}
	}
}

func eventFromHub(in *corev1.Event, out *eventsv1.Event) {
	out.ObjectMeta, out.EventTime, out.Action, out.Reason, out.Type = in.ObjectMeta, in.EventTime, in.Action, in.Reason, in.Type
	out.ReportingController, out.ReportingInstance = in.ReportingController, in.ReportingInstance
	out.Regarding, out.Related, out.Note, out.DeprecatedSource = in.InvolvedObject, in.Related, in.Message, in.Source
	out.DeprecatedFirstTimestamp, out.DeprecatedLastTimestamp, out.DeprecatedCount = in.FirstTimestamp, in.LastTimestamp, in.Count
	out.Series = nil
	if in.Series != nil {
		out.Series = &eventsv1.EventSeries{Count: in.Series.Count, LastObservedTime: in.Series.LastObservedTime}
	}
}

// pairing registers one conversion.
type pairing func(*runtime.Scheme) error

func pair[In, Out any](convert func(*In, *Out)) pairing {
	return func(s *runtime.Scheme) error {
		return s.AddConversionFunc((*In)(nil), (*Out)(nil), func(in, out any, _ conversion.Scope) error {
			convert(in.(*In), out.(*Out))
			return nil
		})
	}
}

func register(s *runtime.Scheme, all ...pairing) error {
	for _, p := range all {
		if err := p(s); err != nil {
			return err
		}
	}
	return nil
}

func each[In, Out any](in []In, convert func(*In, *Out)) []Out {
	if in == nil {
		return nil
	}
	out := make([]Out, len(in))
	for i := range in {
		convert(&in[i], &out[i])
	}
	return out
}
