// Panels that Grafana does not publish on npm, drawn here: similar, not the same.
import { DataFrame, FieldType, TimeRange, dateTimeFormat, formattedValueToString, getFieldDisplayName, getValueFormat } from '@grafana/data';
import { measureText, useTheme2 } from '@grafana/ui';
import * as chromatic from 'd3-scale-chromatic';

type Size = { width: number; height: number; range: TimeRange };
const NICE = [1, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400].map((it) => it * 1000);
const BELOW = 22;
const FONT = 12;

/** The time axis that all drawn panels share, and the position of a time on it. */
function useTime({ width, height, range }: Size, left: number) {
  const theme = useTheme2();
  const [from, to] = [range.from.valueOf(), range.to.valueOf()];
  const room = width - left - 12;
  const x = (at: number) => left + ((at - from) / (to - from)) * room;
  const step = NICE.find((it) => ((it / (to - from)) * room) > 70) ?? NICE[NICE.length - 1];
  const ticks = Array.from({ length: Math.floor(to / step) - Math.ceil(from / step) + 1 }, (_, i) => (Math.ceil(from / step) + i) * step);
  const axis = ticks.map((at) => (
    <g key={at}>
      <line x1={x(at)} x2={x(at)} y1={0} y2={height - BELOW} stroke={theme.colors.border.weak} />
      <text x={x(at)} y={height - 6} textAnchor="middle" fontSize={FONT} fill={theme.colors.text.primary}>
        {dateTimeFormat(at, { format: step < 60000 ? 'HH:mm:ss' : 'HH:mm', timeZone: 'utc' })}
      </text>
    </g>
  ));
  return { theme, x, axis };
}

/** A lane for each series, in the colours and words of its value mappings. */
export function StateTimeline({ frames, options, ...size }: Size & { frames: DataFrame[]; options: any }) {
  const lanes = frames.flatMap((each) =>
    each.fields.filter((it) => it.type === FieldType.number).map((field) => ({ name: getFieldDisplayName(field, each, frames), field, times: each.fields[0] })),
  ).slice(0, options.perPage ?? 20);
  const left = Math.min(size.width / 3, Math.max(...lanes.map((it) => measureText(it.name, FONT).width)) + 12);
  const { theme, x, axis } = useTime(size, left);
  const tall = (size.height - BELOW) / lanes.length;
  return (
    <svg width={size.width} height={size.height}>
      {axis}
      {lanes.map(({ name, field, times }, lane) => (
        <g key={name + lane} transform={`translate(0 ${lane * tall})`}>
          <text x={left - 8} y={tall / 2 + 4} textAnchor="end" fontSize={FONT} fill={theme.colors.text.primary}>{name}</text>
          {runs(times.values, field.values, times.config.interval ?? 0).map(({ from, to, value }) => {
            const shown = field.display!(value);
            const said = formattedValueToString(shown);
            const wide = Math.max(1, x(to) - x(from));
            return (
              <g key={from}>
                <rect x={x(from)} y={tall * 0.075} width={wide} height={tall * (options.rowHeight ?? 0.9)} fill={shown.color} fillOpacity={0.85} />
                {wide > measureText(said, FONT).width + 6 && tall > FONT && (
                  <text x={x(from) + 4} y={tall / 2 + 4} fontSize={FONT} fill={theme.colors.getContrastText(shown.color ?? '#000')}>{said}</text>
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
function runs(times: number[], values: (number | null)[], step: number) {
  const made: { from: number; to: number; value: number }[] = [];
  times.forEach((at, place) => {
    const [value, last] = [values[place], made[made.length - 1]];
    if (value === null) return;
    if (last && last.to >= at && last.value === value) last.to = at + step;
    else made.push({ from: at, to: at + step, value });
  });
  return made;
}

/** Buckets by ``le`` over time: cumulative counts become counts, each with a colour. */
export function Heatmap({ frames, options, ...size }: Size & { frames: DataFrame[]; options: any }) {
  const bound = (each: DataFrame) => Number((each.fields[1].labels?.le ?? '').replace('+Inf', 'Infinity'));
  const rows = [...frames].sort((a, b) => bound(a) - bound(b));
  const below = rows.map((it) => new Map(it.fields[0].values.map((at: number, place: number) => [at, it.fields[1].values[place] as number])));
  const cells = rows.flatMap((row, height) => [...below[height]].map(([at, sum]) => ({ at, height, count: sum - (below[height - 1]?.get(at) ?? 0) })));
  const seen = cells.filter((it) => it.count > (options.filterValues?.le ?? 1e-9));
  const most = Math.max(...seen.map((it) => it.count), 0);
  const format = getValueFormat(options.yAxis?.unit);
  const said = rows.map((it) => (Number.isFinite(bound(it)) ? formattedValueToString(format(bound(it))) : '+Inf'));
  const left = Math.max(...said.map((it) => measureText(it, FONT).width)) + 12;
  const { theme, x, axis } = useTime({ ...size, height: size.height - 30 }, left);
  const paint = (part: number) => (chromatic as any)[`interpolate${options.color.scheme}`](theme.isLight ? 1 - part : part);
  const tall = (size.height - 30 - BELOW) / rows.length;
  const every = Math.ceil(16 / tall);
  const step = rows[0]?.fields[0].config.interval ?? 0;
  return (
    <svg width={size.width} height={size.height}>
      {axis}
      {said.map((text, row) => row % every === 0 && (
        <text key={row} x={left - 6} y={(rows.length - row) * tall - tall + 4 + 6} textAnchor="end" fontSize={FONT} fill={theme.colors.text.primary}>{text}</text>
      ))}
      {seen.map(({ at, height, count }) => (
        <rect key={`${at}/${height}`} x={x(at)} y={(rows.length - 1 - height) * tall} width={x(at + step) - x(at) + 0.3} height={tall - 1}
          fill={paint(Math.pow(count / most, options.color.exponent ?? 0.5))} />
      ))}
      {Array.from({ length: 64 }, (_, part) => (
        <rect key={part} x={left + part * 4} y={size.height - 24} width={4.3} height={8} fill={paint(part / 63)} />
      ))}
      <text x={left} y={size.height - 3} fontSize={FONT} fill={theme.colors.text.secondary}>0</text>
      <text x={left + 256} y={size.height - 3} textAnchor="end" fontSize={FONT} fill={theme.colors.text.secondary}>
        {formattedValueToString(getValueFormat(options.cellValues?.unit ?? 'short')(most))}
      </text>
    </svg>
  );
}
