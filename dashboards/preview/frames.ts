// Prometheus results as the data frames that Grafana's data source makes.
import {
  DataFrame, Field, FieldType, GrafanaTheme2, cacheFieldDisplayNames, getDisplayProcessor, getFieldMatcher, getFieldSeriesColor,
  standardTransformers, standardTransformersRegistry, transformDataFrame,
} from '@grafana/data';
import { lastValueFrom } from 'rxjs';

export type Labels = Record<string, string>;
export type Answer = { error?: string; result?: { metric: Labels; value?: [number, string]; values?: [number, string][] }[] };
export type Target = { refId: string; expr: string; legendFormat: string; instant: boolean; format: string };

const KNOWN = [...new Set<any>(Object.values(standardTransformers))];
standardTransformersRegistry.setInit(() => KNOWN.map((it) => ({ ...it, transformation: async () => it, imageDark: '', imageLight: '' })));

const time = (values: number[], interval?: number): Field =>
  ({ name: 'Time', type: FieldType.time, config: interval ? { interval } : {}, values });
const frame = (refId: string, fields: Field[]): DataFrame => ({ refId, fields, length: fields[0]?.values.length ?? 0 });

/** Panels over time drop values that are no numbers. */
const finite = (text: string) => (Number.isFinite(Number(text)) ? Number(text) : null);

/** Grafana fills missing samples with null, so that no line crosses the gap. */
function gapped(values: [number, string][], step: number): [number, string][] {
  return values.flatMap((it, place) => (place && it[0] - values[place - 1][0] > step ? [[values[place - 1][0] + step, 'NaN'], it] : [it]) as [number, string][]);
}

function called(target: Target, labels: Labels): string | undefined {
  if (target.legendFormat === '__auto') return Object.keys(labels).length ? undefined : target.expr;
  return target.legendFormat.replace(/\{\{\s*(.+?)\s*\}\}/g, (_, name) => labels[name] ?? '');
}

/** One frame for each series. */
export function series(target: Target, answer: Answer, step: number): DataFrame[] {
  return (answer.result ?? []).map(({ metric, value, values }) => {
    const { __name__, ...labels } = metric;
    const points = values ? gapped(values, step) : value ? [value] : [];
    const figures: Field = {
      name: 'Value', type: FieldType.number, labels,
      config: { displayNameFromDS: called(target, labels) }, values: points.map((it) => (values ? finite(it[1]) : Number(it[1]))),
    };
    return frame(target.refId, [time(points.map((it) => it[0] * 1000), step * 1000), figures]);
  });
}

/** One frame for the whole result: a column for each label, then the value. */
export function table(target: Target, answer: Answer, alone: boolean): DataFrame {
  const result = answer.result ?? [];
  const names = [...new Set(result.flatMap((it) => Object.keys(it.metric)))].filter((it) => it !== '__name__').sort();
  return frame(target.refId, [
    time(result.map((it) => it.value![0] * 1000)),
    ...names.map((name) => ({ name, type: FieldType.string, config: {}, values: result.map((it) => it.metric[name] ?? null) })),
    { name: alone ? 'Value' : `Value #${target.refId}`, type: FieldType.number, config: {},
      values: result.map((it) => Number(it.value![1])) },
  ]);
}

export async function transformed(frames: DataFrame[], steps: any[]): Promise<DataFrame[]> {
  return lastValueFrom(transformDataFrame(steps, frames, { interpolate: (it: string) => it } as any));
}

/** Apply units, value mappings, colours and overrides to each field. */
export function configured(frames: DataFrame[], source: any, theme: GrafanaTheme2): DataFrame[] {
  let place = 0;
  cacheFieldDisplayNames(frames);
  for (const each of frames) {
    for (const field of each.fields) {
      field.config = { ...structuredClone(source.defaults), ...field.config };
      field.config.custom = { ...source.defaults.custom };
      if (field.type === FieldType.string) field.config.mappings = [];
      for (const { matcher, properties } of source.overrides ?? []) {
        if (getFieldMatcher(matcher)(field, each, frames)) properties.forEach((it: any) => put(field.config, it.id, it.value));
      }
      if (field.type === FieldType.number) field.state = { ...field.state, seriesIndex: place++, range: rangeOf(field.values) };
      const palette = field.config.color?.mode?.startsWith('palette');
      if (palette) field.config.color = { mode: 'fixed', fixedColor: getFieldSeriesColor(field, theme).color };
      field.display = getDisplayProcessor({ field, theme });
      field.getLinks = () => (field.config.links ?? []).map((it) => ({ href: '#', title: it.title, target: '_self', origin: field }));
    }
  }
  return frames;
}

function rangeOf(values: (number | null)[]) {
  const known = values.filter((it): it is number => it !== null);
  const [min, max] = known.length ? [Math.min(...known), Math.max(...known)] : [0, 0];
  return { min, max, delta: max - min };
}

function put(into: any, path: string, value: unknown) {
  const names = path.split('.');
  const last = names.pop()!;
  names.reduce((at, name) => (at[name] ??= {}), into)[last] = value;
}
