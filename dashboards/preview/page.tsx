// Draws one dashboard from its JSON and the answers of Prometheus, which window.PREVIEW holds. __init__.py says what of it
// is Grafana's own code.
import '@fontsource/inter/latin-400.css';
import '@fontsource/inter/latin-500.css';
import 'uplot/dist/uPlot.min.css';

import { Global, css } from '@emotion/react';
import {
  DataFrame, Field, FieldType, ThemeContext, TimeRange, cacheFieldDisplayNames, createTheme, dateTime, dateTimeFormat,
  formattedValueToString, getDisplayProcessor, getFieldDisplayName, getFieldDisplayValues, getFieldMatcher, getFieldSeriesColor,
  standardTransformers, standardTransformersRegistry, transformDataFrame,
} from '@grafana/data';
import { BigValue, ErrorBoundary, GlobalStyles, PanelChrome, TimeSeries, measureText } from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';
import { ReactNode } from 'react';
import { createRoot } from 'react-dom/client';
import { lastValueFrom } from 'rxjs';

type Sample = [number, string];
type Result = { metric: Record<string, string>; value: Sample; values?: Sample[] };
type Answer = { error?: string; data: { result: Result[] } };
type Drawn = { panel: any; frames: DataFrame[]; width: number; height: number };

const { dashboard, from, to, chosen, asked } = (window as any).PREVIEW;
const raw = { from: dateTime(from * 1000), to: dateTime(to * 1000) };
const range: TimeRange = { ...raw, raw };
const theme = createTheme({ colors: { mode: 'dark' } });
const { colors } = theme;
const WIDTH = 1600, EDGE = 16, GAP = 8, CELL = 30, TOP = 96; // WIDTH, TOP and CELL + GAP are in __main__.py too
const COLUMN = (WIDTH - 2 * EDGE + GAP) / 24;
const FONT = 12;
/** The kinds of panels that the preview draws; a test compares them with the pages. */
const KINDS: Record<string, (drawn: Drawn) => ReactNode> = {
  'stat': Stat,
  'table': Table,
  'timeseries': Lines,
  'state-timeline': StateTimeline,
  'heatmap': () => <Text text="The preview draws no heat maps" />,
};

standardTransformersRegistry.setInit(() => [...new Set<any>(Object.values(standardTransformers))]
  .map((each) => ({ ...each, transformation: async () => each, imageDark: '', imageLight: '' })));

const timeField = (values: number[], interval?: number): Field => ({ name: 'Time', type: FieldType.time, config: { interval }, values });

/** One frame for each series of a query. Grafana fills missing samples with null, so that no line crosses a gap. */
function seriesOf(target: any, answer: Answer, step: number): DataFrame[] {
  return answer.data.result.map(({ metric: { __name__, ...labels }, value, values }) => {
    const samples = (values ?? [value]).flatMap((sample, index, all): Sample[] =>
      (index && sample[0] - all[index - 1][0] > step ? [[all[index - 1][0] + step, 'NaN'], sample] : [sample]));
    const legend = target.legendFormat === '__auto' ? (Object.keys(labels).length ? undefined : target.expr)
      : target.legendFormat.replace(/\{\{\s*(.+?)\s*\}\}/g, (_: string, name: string) => labels[name] ?? '');
    const numbers = samples.map(([, text]) => (values && !Number.isFinite(Number(text)) ? null : Number(text)));
    const field: Field = { name: 'Value', type: FieldType.number, labels, config: { displayNameFromDS: legend }, values: numbers };
    return { refId: target.refId, length: samples.length, fields: [timeField(samples.map(([at]) => at * 1000), step * 1000), field] };
  });
}

/** One frame for a whole query: a column for each label, then the value. */
function tableOf({ refId }: any, { data: { result } }: Answer, alone: boolean): DataFrame {
  const names = [...new Set(result.flatMap(({ metric }) => Object.keys(metric)))].filter((name) => name !== '__name__').sort();
  const value = { name: alone ? 'Value' : `Value #${refId}`, type: FieldType.number, config: {}, values: result.map((row) => Number(row.value[1])) };
  const labels = names.map((name) => ({ name, type: FieldType.string, config: {}, values: result.map(({ metric }) => metric[name] ?? null) }));
  return { refId, length: result.length, fields: [timeField(result.map((row) => row.value[0] * 1000)), ...labels, value] };
}

/** The frames of a panel, with units, value mappings, colours and overrides, as Grafana passes them to it. */
async function framesOf(panel: any): Promise<DataFrame[]> {
  const { answers, step } = asked[panel.id];
  const flat = panel.targets[0].format === 'table';
  const all: DataFrame[] = panel.targets.flatMap((target: any) =>
    flat ? [tableOf(target, answers[target.refId], panel.targets.length === 1)] : seriesOf(target, answers[target.refId], step));
  const full = flat ? all.filter(({ length }) => length) : all;
  if (!full.length) return [];
  const frames = await lastValueFrom(transformDataFrame(panel.transformations ?? [], full, { interpolate: (text) => text }));
  const { defaults, overrides } = panel.fieldConfig;
  let seriesIndex = 0;
  cacheFieldDisplayNames(frames);
  for (const frame of frames) {
    for (const field of frame.fields) {
      // Grafana moves wrapText out of the options of the cell when it loads a page.
      const custom = { ...defaults.custom, wrapText: defaults.custom?.cellOptions?.wrapText };
      field.config = { ...structuredClone(defaults), ...field.config, custom };
      if (field.type === FieldType.string) field.config.mappings = [];
      for (const { matcher, properties } of overrides ?? []) {
        if (getFieldMatcher(matcher)(field, frame, frames)) properties.forEach(({ id, value }: any) => put(field.config, id.split('.'), value));
      }
      if (field.type === FieldType.number) {
        const known = field.values.filter((value) => value !== null);
        const [min, max] = known.length ? [Math.min(...known), Math.max(...known)] : [0, 0];
        field.state = { ...field.state, seriesIndex: seriesIndex++, range: { min, max, delta: max - min } };
      }
      if (field.config.color?.mode?.startsWith('palette')) {
        field.config.color = { mode: 'fixed', fixedColor: getFieldSeriesColor(field, theme).color };
      }
      field.display = getDisplayProcessor({ field, theme });
      field.getLinks = () => (field.config.links ?? []).map(({ title }) => ({ href: '#', title, target: '_self', origin: field }));
    }
  }
  return frames;
}

function put(into: any, [name, ...rest]: string[], value: unknown) {
  if (rest.length) put(into[name] ??= {}, rest, value);
  else into[name] = value;
}

function Stat({ panel, frames, width, height }: Drawn) {
  const { reduceOptions, ...options } = panel.options;
  const values = getFieldDisplayValues({
    fieldConfig: panel.fieldConfig, reduceOptions, replaceVariables: (text) => text, theme, data: frames, timeZone: 'utc',
    sparkline: options.graphMode !== 'none',
  });
  const across = width >= height * 1.5;
  const share = (length: number) => (length - GAP * (values.length - 1)) / values.length;
  return (
    <div style={{ display: 'flex', flexDirection: across ? 'row' : 'column', gap: GAP }}>
      {values.map(({ display, sparkline }, index) => (
        <BigValue key={index} value={display} sparkline={sparkline} theme={theme} count={values.length} {...options}
          width={across ? share(width) : width} height={across ? height : share(height)} />
      ))}
    </div>
  );
}

function Table({ panel, frames, width, height }: Drawn) {
  return (
    <TableNG data={frames[0]} width={width} height={height} cellHeight={panel.options.cellHeight} sortBy={panel.options.sortBy}
      enablePagination={panel.options.enablePagination} fieldConfig={panel.fieldConfig} structureRev={1} enableVirtualization={false} />
  );
}

function Lines({ panel, frames, width, height }: Drawn) {
  return <TimeSeries frames={frames} width={width} height={height} timeRange={range} timeZone="utc" legend={panel.options.legend} />;
}

/** A lane for each series, in the colours and words of its value mappings. */
function StateTimeline({ panel, frames, width, height }: Drawn) {
  const lanes = frames.map((frame) => ({ name: getFieldDisplayName(frame.fields[1], frame, frames), fields: frame.fields }));
  const left = Math.min(width / 3, Math.max(...lanes.map(({ name }) => measureText(name, FONT).width)) + 12);
  const x = (at: number) => left + ((at / 1000 - from) / (to - from)) * (width - left - 12);
  const tall = (height - 22) / lanes.length;
  const step = [5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 21600].find((seconds) => x(seconds * 1000) - x(0) > 70) ?? 86400;
  const ticks = Array.from({ length: Math.floor(to / step) - Math.ceil(from / step) + 1 }, (_, index) => (Math.ceil(from / step) + index) * step * 1000)
    .filter((at) => x(at) < width - 30); // the time beneath it has room
  const text = { fontSize: FONT, fill: colors.text.primary };
  return (
    <svg width={width} height={height} letterSpacing={0}>
      {ticks.map((at) => (
        <g key={at}>
          <line x1={x(at)} x2={x(at)} y1={0} y2={height - 22} stroke={colors.border.weak} />
          <text x={x(at)} y={height - 6} textAnchor="middle" {...text}>{dateTimeFormat(at, { format: step < 60 ? 'HH:mm:ss' : 'HH:mm', timeZone: 'utc' })}</text>
        </g>
      ))}
      {lanes.map(({ name, fields: [times, field] }, lane) => (
        <g key={name} transform={`translate(0 ${lane * tall})`}>
          <text x={left - 8} y={tall / 2 + 4} textAnchor="end" {...text}>{name}</text>
          {stretches(times.values, field.values, times.config.interval!).map(({ begins, ends, value }) => {
            const shown = field.display!(value);
            const words = formattedValueToString(shown);
            const wide = Math.max(1, x(ends) - x(begins));
            return (
              <g key={begins}>
                <rect x={x(begins)} y={tall * 0.075} width={wide} height={tall * (panel.options.rowHeight ?? 0.9)} fill={shown.color} fillOpacity={0.85} />
                {wide > measureText(words, FONT).width + 6 && tall > FONT && (
                  <text x={x(begins) + 4} y={tall / 2 + 4} fontSize={FONT} fill={colors.getContrastText(shown.color ?? '#000')}>{words}</text>
                )}
              </g>
            );
          })}
        </g>
      ))}
    </svg>
  );
}

/** Stretches of equal values; missing samples leave a gap. */
function stretches(times: number[], values: (number | null)[], step: number) {
  const made: { begins: number; ends: number; value: number }[] = [];
  times.forEach((at, index) => {
    const [value, last] = [values[index], made[made.length - 1]];
    if (value === null) return;
    if (last && last.ends >= at && last.value === value) last.ends = at + step;
    else made.push({ begins: at, ends: at + step, value });
  });
  return made;
}

function Text({ text, color = colors.text.secondary }: { text: string; color?: string }) {
  return <div style={{ height: '100%', display: 'grid', placeItems: 'center', textAlign: 'center', color, overflow: 'hidden' }}>{text}</div>;
}

function Panel({ panel, frames, fault }: { panel: any; frames: DataFrame[]; fault: string }) {
  const { x, y, w, h } = panel.gridPos;
  const [width, height] = [w * COLUMN - GAP, h * (CELL + GAP) - GAP];
  const style = { position: 'absolute', left: EDGE + x * COLUMN, top: TOP + y * (CELL + GAP), width, height } as const;
  if (panel.type === 'row') return <h6 style={{ ...style, padding: '6px 4px' }}>{panel.collapsed ? '›' : '⌄'} {panel.title}</h6>;
  const Kind = KINDS[panel.type];
  const inside = (inner: number, tall: number) => {
    if (fault) return <Text text={fault} color={colors.error.text} />;
    if (!frames.length && panel.type !== 'stat') return <Text text={panel.fieldConfig.defaults.noValue ?? 'No data'} />;
    return (
      <ErrorBoundary>
        {({ error }) => (error ? <Text text={String(error)} color={colors.error.text} /> : <Kind {...{ panel, frames }} width={inner} height={tall} />)}
      </ErrorBoundary>
    );
  };
  return (
    <div style={style}>
      <PanelChrome title={panel.title} description={panel.description} width={width} height={height} statusMessage={fault || undefined}>{inside}</PanelChrome>
    </div>
  );
}

function Head() {
  const box = { border: `1px solid ${colors.border.medium}`, background: colors.background.primary, borderRadius: 2, padding: '4px 8px' };
  return (
    <header style={{ position: 'absolute', left: EDGE, right: EDGE, top: 10, color: colors.text.primary }}>
      <div style={{ display: 'flex', justifyContent: 'space-between', alignItems: 'center' }}>
        <h4 style={{ margin: 0 }}>{dashboard.title}</h4>
        <span style={box}>{raw.from.utc().format('YYYY-MM-DD HH:mm')} to {raw.to.utc().format('HH:mm')} UTC</span>
      </div>
      <div style={{ display: 'flex', gap: 12, alignItems: 'center', marginTop: 8 }}>
        {dashboard.templating.list.filter(({ type }: any) => type === 'query').map(({ name, label }: any) => (
          <span key={name}><span style={{ ...box, background: colors.background.secondary }}>{label}</span><span style={box}>{chosen[name] ?? 'All'}</span></span>
        ))}
        <span style={{ color: colors.text.secondary, marginLeft: 'auto' }}>{dashboard.description}</span>
      </div>
    </header>
  );
}

async function draw() {
  await Promise.all([400, 500].map((weight) => document.fonts.load(`${weight} 12px Inter`)));
  const panels = await Promise.all(dashboard.panels.map(async (panel: any) => {
    const answers: Answer[] = panel.type === 'row' ? [] : Object.values(asked[panel.id].answers);
    const fault = answers.flatMap(({ error }) => error ?? []).join('; ');
    const frames = panel.type === 'row' || fault ? [] : await framesOf(panel);
    return <Panel key={panel.id} panel={panel} frames={frames} fault={fault} />;
  }));
  createRoot(document.getElementById('page')!).render(
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <Global styles={css({ body: { overflow: 'hidden', background: colors.background.canvas } })} />
      <Head />
      {panels}
    </ThemeContext.Provider>,
  );
}

draw();
